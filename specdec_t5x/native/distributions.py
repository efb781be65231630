"""Distributions by our kernel (distributions.cc) in programs for CPUs, else by XLA.

Shapes: V vocabulary.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from specdec_t5x.core.distributions import Sampling
from specdec_t5x.native import library, platforms


def adjusted_probs(
  logits: Float[Array, "*batch V"], sampling: Sampling
) -> Float[Array, "*batch V"]:
  """Like `core.adjust.adjusted_probs`, by our kernel if available."""
  # Here alone: greedy decoding needs no distributions.
  from specdec_t5x.core import adjust

  by_xla = functools.partial(adjust.adjusted_probs, sampling=sampling)
  if sampling.greedy or library.problem() is not None:
    return by_xla(logits)

  def by_kernel(logits):
    return distribution(logits, sampling.temperature, sampling.top_k, sampling.top_p)

  adjust_logits = platforms.choose_kernel_on_cpu(by_kernel, by_xla)
  return adjust_logits(logits.astype(jnp.float32))


def distribution(
  logits: Float[Array, "*batch V"], temperature: float, top_k: int, top_p: float
) -> Float[Array, "*batch V"]:
  """Returns softmax(logits / temperature) of the kept tokens, without derivatives.

  At most one of `top_k` and `top_p` is set.

  Args:
    logits: float32 logits.
    temperature: temperature, above 0.
    top_k: number of most likely tokens to keep, with ties; 0 keeps all tokens.
    top_p: mass that the fewest most likely tokens reach, which are kept with ties; 0
      keeps all tokens.

  Returns:
    float32 probabilities. A row with a NaN or an infinite logit is all NaN.
  """
  call = jax.ffi.ffi_call(
    "specdec_adjust",
    jax.ShapeDtypeStruct(logits.shape, logits.dtype),
    vmap_method="broadcast_all",
  )
  settings = {"temperature": np.float32(temperature), "top_p": np.float32(top_p)}
  return call(logits, top_k=np.int64(top_k), **settings)
