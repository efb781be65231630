"""Sparse distributions with integer weights, as sent by a remote draft.

A distribution of V numbers takes 16 V bits. The K likeliest tokens with weights of 16
bits take K (16 + ceil(log2 V)) bits. Truncation and rounding come before the draw, so
each token is drawn exactly from the sparse distribution, and the rules are unchanged.
(TK-SLT, arXiv 2509.04576; TSLT, arXiv 2512.16273.)

Shapes: V vocabulary, K kept tokens, L uniforms per decision.
"""

import dataclasses

import flax.struct
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from specdec_t5x.core.distributions import sample
from specdec_t5x.core.knobs import is_probability, is_whole

LARGEST = 2**16 - 1  # Weights have 16 bits.
# A distribution is rounded in units of 2^-23 of the mass, or in larger units if the
# largest weight would exceed 16 bits. Rounding adds at most half a unit per token, so
# any sum of K < 2^23 weights is an integer below 2^24. Float32 represents the sum
# exactly, in any order and on any device. The likeliest token has 65535 units, or at
# least 2^23 / K, so at least one weight is above 0.
_UNITS = 2**23
SUM_BELOW = 2**24


@dataclasses.dataclass(frozen=True)
class Truncation:
  """The truncation of a draft's distribution."""

  # The number of likeliest tokens to keep; of equally likely tokens the lower ids
  # come first; 0 keeps all.
  top_k: int = 32
  # The part of the kept tokens' mass to keep, with the fewest likeliest tokens.
  top_p: float = 1.0

  def __post_init__(self):
    if not is_whole(self.top_k, 0):
      raise ValueError(
        f"The draft's top_k must be a whole number of at least 0, got {self.top_k!r}. "
        "top_k is the number of tokens to keep; 0 keeps the whole distribution."
      )
    if not is_probability(self.top_p) or not self.top_p:
      raise ValueError(
        f"The draft's top_p must be above 0 and at most 1, got {self.top_p!r}. top_p "
        "is the fraction of the kept tokens' mass to keep; 1 keeps the whole mass."
      )

  def size(self, vocab_size: int) -> int:
    """Returns K."""
    return min(self.top_k or vocab_size, vocab_size)

  def of(self, probs: Float[Array, "*batch V"]) -> "SparseProbs":
    """Truncates and rounds distributions; all weights are 0 for a NaN distribution."""
    kept, tokens = jax.lax.top_k(probs, self.size(probs.shape[-1]))
    if self.top_p < 1:
      before = jnp.cumsum(kept, axis=-1) - kept
      enough = self.top_p * kept.sum(axis=-1, keepdims=True)
      kept = jnp.where(before < enough, kept, 0.0)
    total = kept.sum(axis=-1, keepdims=True)
    is_distribution = jnp.isfinite(total) & (total > 0)
    shares = jnp.where(
      is_distribution, kept / jnp.where(is_distribution, total, 1.0), 0.0
    )
    largest = shares.max(axis=-1, keepdims=True)
    units = jnp.where(is_distribution, jnp.minimum(LARGEST / largest, _UNITS), 0.0)
    weights = jnp.round(shares * units).astype(jnp.int32)
    order = jnp.argsort(tokens, axis=-1)
    tokens = jnp.take_along_axis(tokens, order, axis=-1).astype(jnp.int32)
    weights = jnp.take_along_axis(weights, order, axis=-1).astype(jnp.int32)
    return SparseProbs(tokens, weights)


@flax.struct.dataclass
class SparseProbs:
  """q(x) = weight of x / sum of weights."""

  tokens: Int[Array, "*batch K"]  # The kept tokens, ascending.
  # From 0 to `LARGEST`, with a sum below `SUM_BELOW`; all 0 if there is no
  # distribution.
  weights: Int[Array, "*batch K"]

  @property
  def total(self) -> Int[Array, "*batch"]:
    """The sum of weights; 0 if there is no distribution."""
    return self.weights.sum(axis=-1)

  def draw(self, uniforms: Float[Array, "*batch L"]) -> Int[Array, "*batch"]:
    """Draws a token, the same token on every device.

    Sums of weights are exact, and otherwise `sample` computes a single product.

    Args:
      uniforms: in [0, 1), as for `distributions.sample` of K tokens.
    """
    at = sample(self.weights.astype(jnp.float32), uniforms)
    return jnp.take_along_axis(self.tokens, at[..., None], axis=-1)[..., 0]

  def dense(self, vocab_size: int) -> Float[Array, "*batch V"]:
    """Returns q of all tokens; NaN at `tokens` if there is no distribution."""
    shares = self.weights / self.total.astype(jnp.float32)[..., None]
    zeros = jnp.zeros((*self.tokens.shape[:-1], vocab_size))
    return jnp.put_along_axis(zeros, self.tokens, shares, axis=-1, inplace=False)
