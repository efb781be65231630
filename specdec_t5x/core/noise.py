"""Noise that target and draft share: the same for a place and a token, whoever asks.

argmax_x of log p(x) + G(x), with independent Gumbel noise G, is a draw from p. Two
distributions that take the argmax with the same G mostly take the same token (Daliri,
Musco, Suresh, arXiv 2408.07978). G = -log E with E from the exponential distribution,
so the argmax is that of p / E.

Shapes: L uniforms a decision, V vocabulary.
"""

import jax.numpy as jnp
from jaxtyping import Array, Float, UInt32

# Uniforms of a decision that its noise is made of, the last ones.
WORDS = 3


def race(
  probs: Float[Array, "*#batch V"], uniforms: Float[Array, "*#batch L"]
) -> Float[Array, "*#batch V"]:
  """Returns p / E: its argmax is a draw from `probs`, never a token without mass.

  Args:
    probs: non-negative, of any total.
    uniforms: in [0, 1), on the grid of 2^-24. Equal ones give equal noise, whatever the
      shapes and the distributions.
  """
  return probs / exponentials(uniforms, probs.shape[-1])


def exponentials(
  uniforms: Float[Array, "*batch L"], size: int
) -> Float[Array, "*batch size"]:
  """Returns independent draws from the exponential distribution, above 0 and finite.

  64 bits a token, by hashing its number with 64 bits of the uniforms. The smallest win,
  so that they are the finest: about 0 the grid is 2^-64 (docs/math.md, "Resolution").
  """
  words = (uniforms[..., -WORDS:] * 2.0**24).astype(jnp.uint32)[..., None]
  first, second, more = words[..., 0, :], words[..., 1, :], words[..., 2, :]
  coarse = _mixed(jnp.arange(size, dtype=jnp.uint32) + (first | more << 24))
  fine = coarse.astype(jnp.float32) * 2.0**-64
  hashed = _mixed(coarse ^ (second | more >> 8 << 24)).astype(jnp.float32)
  # Not 0, nor 1 after rounding: E would be 0 or infinite.
  uniform = jnp.clip(hashed * 2.0**-32 + fine, 2.0**-64, 1 - 2.0**-24)
  return -jnp.log1p(-uniform)


def _mixed(x: UInt32[Array, "*shape"]) -> UInt32[Array, "*shape"]:
  """Returns a hash of each number, no two the same (lowbias32 of hash-prospector)."""
  x = (x ^ x >> 16) * jnp.uint32(0x7FEB352D)
  x = (x ^ x >> 15) * jnp.uint32(0x846CA68B)
  return x ^ x >> 16
