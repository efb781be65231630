"""Drafting by copying: the tokens after an earlier occurrence of the last tokens.

Leviathan et al., section 3.6, suggest copying tokens from the context. The context is
the encoder's input and the output so far; a summary or a translation repeats much of
the input. The drafted tokens are certain, not drawn.

Shapes: B rows, E input length, S sequence buffer, G gamma, T = E + S.
"""

import dataclasses

import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from specdec_t5x.core.knobs import knob, whole
from specdec_t5x.core.types import Proposal
from specdec_t5x.decoding.contracts import Context, Stops, Traits
from specdec_t5x.decoding.state import DecodeState
from specdec_t5x.drafters.draft_model import ChainDrafter, gamma_knob

# The most tokens of a match. Copying starts at the longest match; of equal matches the
# first wins.
LONGEST_MATCH = 6
_PADDING = 0


@dataclasses.dataclass(frozen=True)
class Copy(ChainDrafter):
  """Copies up to gamma tokens. The drafter's state is the encoder's input.

  Attributes:
    gamma: the most tokens of a draft.
    match: the number of last tokens that must precede the copied tokens; without such a
      place the draft is empty.
  """

  gamma: int | None = gamma_knob()
  match: int = knob(
    3,
    whole(1, LONGEST_MATCH),
    macro="COPY_MATCH",
    fix="{knob} is the number of last tokens that must match an earlier place.",
  )

  traits = Traits(independent=False, stops=Stops.BY_ITSELF, resumes=True)

  def start(self, context, caches, source) -> Int[Array, "B E"]:
    """Returns the encoder's input, a source of copies."""
    return source

  def propose(
    self, context: Context, state: DecodeState, uniforms: Float[Array, "B G L"]
  ) -> tuple[Proposal, Int[Array, "B E"]]:
    """Copies tokens, without uniforms; see `decoding.contracts.Drafter`."""
    source = state.drafter_state
    lengths = state.lengths
    is_output = jnp.arange(state.sequences.shape[1]) < lengths[:, None]
    output = jnp.where(is_output, state.sequences, _PADDING)
    # The start token is padding and separates input and output.
    text = jnp.concatenate([source, output], axis=1)
    match_lengths = self._match_lengths(text, output, lengths)
    place = jnp.argmax(match_lengths, axis=1)
    longest = jnp.take_along_axis(match_lengths, place[:, None], axis=1)[:, 0]
    ahead = place[:, None] + 1 + jnp.arange(self.tree.size)
    copied = jnp.take_along_axis(text, ahead, axis=1, mode="fill", fill_value=_PADDING)
    is_text = jnp.cumprod(copied != _PADDING, axis=1)
    num_valid = jnp.where(longest >= self.match, is_text.sum(axis=1), 0)
    return Proposal.chain(copied, None, num_valid), source

  def _match_lengths(self, text, output, lengths) -> Int[Array, "B T"]:
    """Returns the number of last output tokens that match the text up to each place.

    The number is 0 at places without a next token.
    """
    match_lengths = jnp.zeros(text.shape, jnp.int32)
    # Excludes the last known token, which matches itself.
    matches = jnp.pad(text[:, 1:], ((0, 0), (0, 1))) != _PADDING
    for back in range(LONGEST_MATCH):
      at = jnp.maximum(lengths - 1 - back, 0)
      token = jnp.take_along_axis(output, at[:, None], axis=1)
      shifted = jnp.pad(text, ((0, 0), (back, 0)))[:, : text.shape[1]]
      matches &= (shifted == token) & (token != _PADDING)
      match_lengths += matches
    return match_lengths
