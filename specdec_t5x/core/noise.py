"""The noise of coupled draws, which target and draft share.

With independent Gumbel noise G(x),
a function of the position and the token x, argmax_x of log p(x) + G(x) is a draw from
p. With the same G, the argmaxes of two distributions mostly agree (Daliri, Musco,
Suresh, arXiv 2408.07978). G = -log E with E from the exponential distribution, so the
draw equals argmax p / E.

Shapes: L uniforms per decision, V vocabulary.
"""

import jax.numpy as jnp
from jaxtyping import Array, Float, UInt32

from specdec_t5x.core.distributions import AdjustFn, Sampling

# The noise is computed from the last WORDS uniforms of a decision.
WORDS = 3


def race(
  probs: Float[Array, "*#batch V"], uniforms: Float[Array, "*#batch L"]
) -> Float[Array, "*#batch V"]:
  """Returns p / E. The argmax is a draw from `probs`, never a token without mass.

  Args:
    probs: non-negative, with any total.
    uniforms: in [0, 1), on the grid of 2^-24. Equal uniforms give equal noise for any
      shapes and distributions.
  """
  return probs / exponentials(uniforms, probs.shape[-1])


def perturbed(
  logits: Float[Array, "*batch V"],
  sampling: Sampling,
  uniforms: Float[Array, "*#batch L"],
  adjust: AdjustFn,
) -> Float[Array, "*batch V"]:
  """Returns log p plus noise for coupled draws, and the logits otherwise.

  A draft with certain tokens takes the argmax of the result. The arguments are as in
  `distributions.draw`.
  """
  if sampling.greedy or not sampling.coupled:
    return logits
  return jnp.log(race(adjust(logits, sampling), uniforms))


def exponentials(
  uniforms: Float[Array, "*batch L"], size: int
) -> Float[Array, "*batch size"]:
  """Returns independent draws from the exponential distribution, above 0 and finite.

  A hash of the token id and 64 bits of the uniforms gives 64 bits per token. The
  smallest draws win, so the grid is finest near 0: 2^-64 (docs/math.md, "Resolution").
  """
  words = (uniforms[..., -WORDS:] * 2.0**24).astype(jnp.uint32)[..., None]
  first = words[..., 0, :]
  second = words[..., 1, :]
  third = words[..., 2, :]
  coarse = _mixed(jnp.arange(size, dtype=jnp.uint32) + (first | third << 24))
  fine = coarse.astype(jnp.float32) * 2.0**-64
  hashed = _mixed(coarse ^ (second | third >> 8 << 24)).astype(jnp.float32)
  # E would be 0 for a uniform of 0, and infinite for a uniform rounded to 1.
  uniform = jnp.clip(hashed * 2.0**-32 + fine, 2.0**-64, 1 - 2.0**-24)
  return -jnp.log1p(-uniform)


def _mixed(x: UInt32[Array, "*shape"]) -> UInt32[Array, "*shape"]:
  """Returns a hash of each number, a bijection (lowbias32 of hash-prospector)."""
  x = (x ^ x >> 16) * jnp.uint32(0x7FEB352D)
  x = (x ^ x >> 15) * jnp.uint32(0x846CA68B)
  return x ^ x >> 16
