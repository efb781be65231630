"""Drafting by copying: what followed the last tokens before, in the input or output.

Leviathan et al., section 3.6, suggest to copy tokens from the context. An
encoder-decoder's context is foremost the encoder's input, of which a summary or a
translation repeats much. Which token comes is no draw: it is certain.

Shapes: B rows, E input length, S sequence buffer, G gamma, T = E + S.
"""

import dataclasses

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from specdec_t5x.core import tree
from specdec_t5x.core.knobs import knob, whole
from specdec_t5x.core.types import Proposal
from specdec_t5x.decoding.context import Context
from specdec_t5x.decoding.drafter import Drafter, Stops
from specdec_t5x.decoding.state import DecodeState
from specdec_t5x.drafters.stepwise import gamma_knob

# Of two earlier places the one with the longer match is copied; beyond this many tokens
# the first one wins.
LONGEST_MATCH = 6
_PADDING = 0


@dataclasses.dataclass(frozen=True)
class Copy(Drafter):
  """Copies up to gamma tokens; its state is the encoder's input, as it is.

  Attributes:
    gamma: most tokens a draft.
    match: how many of the last tokens must stand at the place that is copied; where
      there is none, nothing is drafted.
  """

  gamma: int = gamma_knob()
  match: int = knob(
    3,
    whole(1, LONGEST_MATCH),
    "how many of the last tokens must stand at the place that is copied",
    "COPY_MATCH",
    "It is how many of the last tokens must have stood together before.",
  )

  independent = False
  stops = Stops.BY_ITSELF
  resumes = True

  @property
  def tree(self) -> tree.Tree:
    """A chain of gamma tokens."""
    return tree.chain(self.gamma)

  def start(self, context: Context) -> Int[Array, "B E"]:
    """Returns the encoder's input, which is copied from."""
    return context.source

  def propose(
    self, context: Context, state: DecodeState, uniforms: Float[Array, "B G L"]
  ) -> tuple[Proposal, Int[Array, "B E"]]:
    """Copies; no draw is used. See `decoding.drafter.Drafter`."""
    del context, uniforms
    source, sequences, lengths = state.drafter_state, state.sequences, state.lengths
    is_known = jnp.arange(sequences.shape[1]) < lengths[:, None]
    known = jnp.where(is_known, sequences, _PADDING)
    # The start token, which is padding too, keeps input and output apart.
    text = jnp.concatenate([source, known], axis=1)
    matched = self._matched(text, known, lengths)
    place = jnp.argmax(matched, axis=1)
    found = jnp.take_along_axis(matched, place[:, None], axis=1)[:, 0]
    ahead = place[:, None] + 1 + jnp.arange(self.gamma)
    copied = jnp.take_along_axis(text, ahead, axis=1, mode="fill", fill_value=_PADDING)
    is_text = jnp.cumprod(copied != _PADDING, axis=1)
    num_valid = jnp.where(found >= self.match, is_text.sum(axis=1), 0)
    return Proposal.chain(copied, None, num_valid), source

  def _matched(self, text, known, lengths) -> Int[Array, "B T"]:
    """Returns how many of the last known tokens end at each place with a next one."""
    matched, running = jnp.zeros(text.shape, jnp.int32), self._has_next(text)
    for back in range(LONGEST_MATCH):
      at = jnp.maximum(lengths - 1 - back, 0)
      token = jnp.take_along_axis(known, at[:, None], axis=1)
      shifted = jnp.pad(text, ((0, 0), (back, 0)))[:, : text.shape[1]]
      running &= (shifted == token) & (token != _PADDING)
      matched += running
    return matched

  def _has_next(self, text) -> Bool[Array, "B T"]:
    # So the last known token, which matches itself, is no place to copy from.
    return jnp.pad(text[:, 1:], ((0, 0), (0, 1))) != _PADDING
