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
  """Like `core.adjust.adjusted_probs`, by our kernel if available.

  The kernel gives NaNs for a row with a NaN or an infinite logit.
  """
  # Here alone: greedy decoding needs no distributions.
  from specdec_t5x.core import adjust

  by_xla = functools.partial(adjust.adjusted_probs, sampling=sampling)
  if sampling.greedy or library.problem() is not None:
    return by_xla(logits)

  def by_kernel(logits):
    call = jax.ffi.ffi_call(
      "specdec_adjust",
      jax.ShapeDtypeStruct(logits.shape, logits.dtype),
      vmap_method="broadcast_all",
    )
    # At most one of top_k and top_p is set.
    return call(
      logits,
      temperature=np.float32(sampling.temperature),
      top_k=np.int64(sampling.top_k),
      top_p=np.float32(sampling.top_p),
    )

  adjust_logits = platforms.choose_kernel_on_cpu(by_kernel, by_xla)
  return adjust_logits(logits.astype(jnp.float32))
