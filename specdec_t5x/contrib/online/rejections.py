"""The target's distributions at rejected positions, for the training of a draft.

Verification computes these distributions, so keeping the distributions costs no target
call. Liu et al. (arXiv 2310.07177, section 3) run target and draft again instead.

Shapes: B rows, T output length, K kept tokens.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any

import flax.struct
import jax
import jax.numpy as jnp
from flax.linen.partitioning import with_sharding_constraint
from jaxtyping import Array, Float, Int

from specdec_t5x.core.knobs import KnobError, invalid, is_whole
from specdec_t5x.core.rules.token import probs_at
from specdec_t5x.decoding.loop import is_cut
from specdec_t5x.decoding.state import DecodeState, Iteration

# Auxiliary values of T5X's models for online learning: inputs [B, E], and the tokens
# and probabilities [B, T, K] of `Rejections`.
LEARNED_FROM = ("encoder_inputs", "kept_tokens", "kept_probs")


@flax.struct.dataclass
class Rejections:
  """The most likely tokens under the target at each place where a draft was cut.

  The distribution is softmax(logits), at temperature 1, for all settings of sampling. A
  draft is cut at most once per place, because the target then chooses the token at the
  place. The probabilities at a place sum to at most 1, and are zeros without a
  rejection.
  """

  tokens: Int[Array, "B T K"]
  probs: Float[Array, "B T K"]


@dataclasses.dataclass(frozen=True)
class KeepRejections:
  """An observer (`decoding.contracts`) that keeps `Rejections` of K=count tokens."""

  count: int

  def check(self, target: Any, num_decodes: int) -> None:
    """Raises a ValueError if the target's vocabulary is too small for K tokens."""
    size = target.config.vocab_size
    if not is_whole(self.count, 1) or self.count >= size:
      raise invalid(
        "kept",
        f"a whole number from 1 to {size - 1}",
        self.count,
        "{kept} is the number of tokens of the target's distribution to keep for a "
        "rejected draft.",
      )
    if num_decodes != 1:
      raise KnobError(
        "{num_decodes} must be 1 if a draft learns ({kept}={count}), got {value!r}: "
        "distributions are kept for one output per input. Set {num_decodes}=1.",
        count=self.count,
        value=num_decodes,
      )

  def start(self, rows: int, max_length: int) -> Rejections:
    """Returns zeros, the rejections before the first iteration."""
    shape = (rows, max_length, self.count)
    axes = ("batch", None, None)
    return Rejections(
      tokens=with_sharding_constraint(jnp.zeros(shape, jnp.int32), axes),
      probs=with_sharding_constraint(jnp.zeros(shape), axes),
    )

  def observe(
    self, kept: Rejections, before: DecodeState, iteration: Iteration
  ) -> Rejections:
    """Adds the target's distribution where an iteration cut a draft."""
    proposal = iteration.proposal
    if proposal is None:  # An iteration without a draft.
      return kept
    last = iteration.verdict.last
    place = before.lengths - before.starts + proposal.tree.depth_of(last)
    is_rejected = ~before.ended & is_cut(proposal, iteration.verdict)
    logits = probs_at(iteration.logits, last).astype(jnp.float32)
    values, tokens = jax.lax.top_k(jax.nn.log_softmax(logits), self.count)
    # Writes at index `size`, beyond the output, are dropped.
    rows, size, _ = kept.tokens.shape
    index = (jnp.arange(rows), jnp.where(is_rejected, place, size))
    return Rejections(
      tokens=kept.tokens.at[index].set(tokens.astype(jnp.int32), mode="drop"),
      probs=kept.probs.at[index].set(jnp.exp(values), mode="drop"),
    )

  def auxiliary(self, kept: Rejections, given: Mapping[str, Array]) -> dict[str, Array]:
    """Returns the auxiliary values `LEARNED_FROM`, and the features in `given`."""
    return {**given, "kept_tokens": kept.tokens, "kept_probs": kept.probs}
