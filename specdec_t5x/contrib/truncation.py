"""A probs on a few tokens, in whole numbers: what a draft in another process sends.

A distribution of V numbers is 16 V bits. Truncated to the K likeliest tokens and
rounded to 16 bits before anything is drawn, it is K (16 + ceil(log2 V)), and still
exactly what the token was drawn from: so nothing of the rules changes. (TK-SLT, arXiv
2509.04576; TSLT, arXiv 2512.16273.)

Shapes: V vocabulary, K kept tokens, L uniforms a decision.
"""

import dataclasses

import flax.struct
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from specdec_t5x.core.checks import is_probability, is_whole
from specdec_t5x.core.distributions import sample

# Weights have 16 bits.
LARGEST = 2**16 - 1
WEIGHT_BITS = 16
# A distribution is rounded in units of 2^-23 of its mass, or in larger ones where its
# largest weight would not have 16 bits. Rounding adds at most half a unit a token, so
# any sum of K < 2^23 weights is a whole number below 2^24: the same float32 in whatever
# order, on whatever device. The likeliest token has 65535 units, or at least 2^23 / K:
# not all are rounded to none.
_UNITS = 2**23
SUM_BELOW = 2**24


@dataclasses.dataclass(frozen=True)
class Truncation:
  """How much of a draft's distribution is kept.

  Attributes:
    top_k: the likeliest tokens that are kept, of equal ones those of lower number; 0
      keeps all.
    top_p: of these the fewest likeliest that reach this part of their mass.
  """

  top_k: int = 32
  top_p: float = 1.0

  def __post_init__(self):
    if not is_whole(self.top_k, 0):
      raise ValueError(
        "The draft's top_k must be a whole number of at least 0, got "
        f"{self.top_k!r}. It is how many tokens of its distribution are kept; 0 keeps "
        "all."
      )
    if not is_probability(self.top_p) or not self.top_p:
      raise ValueError(
        f"The draft's top_p must be above 0 and at most 1, got {self.top_p!r}. It is "
        "how much of the kept tokens' mass is kept; 1 keeps all."
      )

  def size(self, vocab_size: int) -> int:
    """Returns K."""
    return min(self.top_k or vocab_size, vocab_size)

  def of(self, probs: Float[Array, "*batch V"]) -> "SparseProbs":
    """Returns a probs's largest numbers, rounded; nothing where one is not a number."""
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
    pick = lambda x: jnp.take_along_axis(x, order, axis=-1).astype(jnp.int32)
    return SparseProbs(pick(tokens), pick(weights))


@flax.struct.dataclass
class SparseProbs:
  """q(x) = weight of x / sum of weights.

  Attributes:
    tokens: that may be drawn, ascending.
    weights: from 0 to `LARGEST`, together below `SUM_BELOW`; all 0 where there is no
      distribution.
  """

  tokens: Int[Array, "*batch K"]
  weights: Int[Array, "*batch K"]

  @property
  def total(self) -> Int[Array, "*batch"]:
    """The sum of weights; 0 where there is no distribution."""
    return self.weights.sum(axis=-1)

  def draw(self, uniforms: Float[Array, "*batch L"]) -> Int[Array, "*batch"]:
    """Returns a token of the distribution, the same one on every device.

    Sums of weights are exact, and what else `sample` does is one product.

    Args:
      uniforms: in [0, 1), as for `distributions.sample` of K tokens.
    """
    at = sample(self.weights.astype(jnp.float32), uniforms)
    return jnp.take_along_axis(self.tokens, at[..., None], axis=-1)[..., 0]

  def dense(self, vocab_size: int) -> Float[Array, "*batch V"]:
    """Returns q of all tokens; NaN at its tokens where there is no distribution."""
    shares = self.weights / self.total.astype(jnp.float32)[..., None]
    *batch, size = self.tokens.shape
    tokens, shares = (x.reshape(-1, size) for x in (self.tokens, shares))
    rows = jnp.arange(tokens.shape[0])[:, None]
    distribution = jnp.zeros((tokens.shape[0], vocab_size)).at[rows, tokens].set(shares)
    return distribution.reshape(*batch, vocab_size)


def probs_bits(top_k: int, vocab_size: int) -> int:
  """Returns the bits of a drafted token and its distribution, as the papers count.

  K (16 + ceil(log2 V)) + ceil(log2 V); a whole distribution goes without its tokens. A
  message of `contrib.link.wire` has 16 or 32 bits for a token's number.

  >>> probs_bits(32, 32128), probs_bits(32128, 32128)
  (1007, 514063)
  """
  number = token_bits(vocab_size)
  each = WEIGHT_BITS + (number if top_k < vocab_size else 0)
  return top_k * each + number


def token_bits(vocab_size: int) -> int:
  """Returns ceil(log2 V), the bits of a token."""
  return max(1, (vocab_size - 1).bit_length())
