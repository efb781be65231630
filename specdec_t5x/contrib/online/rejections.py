"""The target's distributions where drafts were rejected: what a draft can learn from.

Verification has them, so keeping them costs no call of the target (Liu et al., arXiv
2310.07177, section 3, run target and draft again instead).

Shapes: B rows, T output length, K kept tokens, V vocabulary.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any

import flax.struct
import jax
import jax.numpy as jnp
from flax.linen.partitioning import with_sharding_constraint
from jaxtyping import Array, Bool, Float, Int

from specdec_t5x.core import chain
from specdec_t5x.core.checks import is_whole
from specdec_t5x.decoding.state import DecodeState
from specdec_t5x.decoding.step import Iteration, is_cut

# What T5X's models add to their auxiliary values: inputs [B, E], and of `Rejections`
# tokens and probs [B, T, K].
LEARNED_FROM = ("encoder_inputs", "kept_tokens", "kept_probs")


@flax.struct.dataclass
class Rejections:
  """The likeliest tokens of the target's probs at each place where a draft was cut.

  The distribution is softmax(logits), that at T = 1, however outputs are sampled. A
  place is cut once at most, for the token that then stands there is the target's own.
  Probs sum to at most 1, and are zeros at places without a rejection.
  """

  tokens: Int[Array, "B T K"]
  probs: Float[Array, "B T K"]

  def put(
    self,
    place: Int[Array, "B"],
    is_rejected: Bool[Array, "B"],
    logits: Float[Array, "B V"],
  ) -> "Rejections":
    """Returns these and the distribution of each rejected row, at its place."""
    rows, size = self.tokens.shape[:2]
    log_probs = jax.nn.log_softmax(logits.astype(jnp.float32))
    values, tokens = jax.lax.top_k(log_probs, self.tokens.shape[2])
    # What is beyond the output is dropped.
    at = jnp.arange(rows), jnp.where(is_rejected, place, size)
    return Rejections(
      self.tokens.at[at].set(tokens.astype(jnp.int32), mode="drop"),
      self.probs.at[at].set(jnp.exp(values), mode="drop"),
    )


@dataclasses.dataclass(frozen=True)
class KeepRejections:
  """An observer (`decoding.generate`) that keeps `Rejections` of K=count tokens."""

  count: int

  def check(self, target: Any, num_decodes: int = 1) -> None:
    """Raises a ValueError where the target has no more than K tokens."""
    size = target.config.vocab_size
    if not is_whole(self.count, 1) or self.count >= size:
      raise ValueError(
        f"KEPT must be a whole number from 1 to {size - 1}, got {self.count!r}. It is "
        "how many tokens of the target's distribution are kept where a draft was "
        "rejected."
      )
    if num_decodes != 1:
      raise ValueError(
        f"NUM_DECODES must be 1 where a draft learns (KEPT={self.count}), got "
        f"{num_decodes!r}: distributions are kept of one output an input."
      )

  def start(self, rows: int, max_length: int) -> Rejections:
    """Returns what there is before the first iteration."""
    shape = rows, max_length, self.count
    by_row = lambda x: with_sharding_constraint(x, ("batch", None, None))
    return Rejections(by_row(jnp.zeros(shape, jnp.int32)), by_row(jnp.zeros(shape)))

  def observe(
    self, kept: Rejections, before: DecodeState, iteration: Iteration
  ) -> Rejections:
    """Returns these with the target's distribution where a draft was cut."""
    proposal, last = iteration.proposal, iteration.verdict.last
    place = before.lengths - before.starts + proposal.tree.depth_of(last)
    is_rejected = ~before.ended & is_cut(proposal, iteration.verdict)
    return kept.put(place, is_rejected, chain.probs_at(iteration.logits, last))

  def auxiliary(self, kept: Rejections, given: Mapping[str, Array]) -> dict[str, Array]:
    """Returns what is learned from, `LEARNED_FROM`, and whose samples rows are."""
    return {**given, "kept_tokens": kept.tokens, "kept_probs": kept.probs}
