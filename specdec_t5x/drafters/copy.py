"""Drafting by copying: what followed the last tokens before, in the input or output.

Leviathan et al., section 3.6, suggest to copy tokens from the context. An
encoder-decoder's context is foremost the encoder's input, of which a summary or a
translation repeats much. One-hot law: which token comes is no draw, so q is 1 at it.

Shapes: B rows, E input length, S sequence buffer, G gamma, V vocabulary, T = E + S.
"""

import dataclasses

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from specdec_t5x.core.checks import is_whole
from specdec_t5x.core.types import Proposal, Verdict

# Of two earlier places the one with the longer match is copied; beyond this many tokens
# the first one wins.
LONGEST_MATCH = 6
DEFAULT_MATCH = 3
_PADDING = 0


@dataclasses.dataclass(frozen=True)
class CopyDraft:
  """Copies up to gamma tokens; its state is the encoder's input, as it is.

  Attributes:
    gamma: tokens a proposal.
    vocab_size: of the target.
    shortest_match: how many of the last tokens must stand at the place that is copied;
      where there is none, nothing is drafted.
  """

  gamma: int
  vocab_size: int
  shortest_match: int

  def __post_init__(self):
    match = self.shortest_match
    if not is_whole(match, 1) or match > LONGEST_MATCH:
      raise ValueError(
        f"COPY_MATCH must be from 1 to {LONGEST_MATCH}, got {match!r}. It "
        "is how many of the last tokens must have stood together before."
      )

  def propose(
    self,
    state: Int[Array, "B E"],
    sequences: Int[Array, "B S"],
    lengths: Int[Array, "B"],
    uniforms: Float[Array, "B G L"],
  ) -> tuple[Proposal, Int[Array, "B E"]]:
    """Copies; no draw is used. See `core.types.Drafter`."""
    del uniforms
    is_known = jnp.arange(sequences.shape[1]) < lengths[:, None]
    known = jnp.where(is_known, sequences, _PADDING)
    # The start token, which is padding too, keeps input and output apart.
    text = jnp.concatenate([state, known], axis=1)
    matched = self._matched(text, known, lengths)
    place = jnp.argmax(matched, axis=1)
    found = jnp.take_along_axis(matched, place[:, None], axis=1)[:, 0]
    ahead = place[:, None] + 1 + jnp.arange(self.gamma)
    copied = jnp.take_along_axis(text, ahead, axis=1, mode="fill", fill_value=_PADDING)
    is_text = jnp.cumprod(copied != _PADDING, axis=1)
    num_valid = jnp.where(found >= self.shortest_match, is_text.sum(axis=1), 0)
    law = jax.nn.one_hot(copied, self.vocab_size)
    return Proposal(copied, law, num_valid.astype(jnp.int32)), state

  def commit(
    self,
    state: Int[Array, "B E"],
    verdict: Verdict,
    features: Float[Array, "B K D"],
  ) -> Int[Array, "B E"]:
    """Returns the input as it is."""
    del verdict, features
    return state

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
