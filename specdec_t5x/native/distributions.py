"""Distributions by our kernel (probs.cc) in programs for CPUs, by XLA in others.

Shapes: V vocabulary.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from specdec_t5x.core import adjust
from specdec_t5x.core.distributions import Sampling
from specdec_t5x.native import library, platforms


def adjusted_probs(
  logits: Float[Array, "*batch V"], sampling: Sampling
) -> Float[Array, "*batch V"]:
  """As `core.adjust.adjusted_probs`, by our kernel where there is one."""
  by_xla = functools.partial(adjust.adjusted_probs, sampling=sampling)
  if sampling.greedy or library.problem() is not None:
    return by_xla(logits)
  knobs = sampling.temperature, sampling.top_k, sampling.top_p
  ours = lambda logits: distribution(logits, *knobs)
  choose = platforms.choose_kernel_on_cpu(ours, by_xla)
  return choose(logits.astype(jnp.float32))


def distribution(
  logits: Float[Array, "*batch V"], temperature: float, top_k: int, top_p: float
) -> Float[Array, "*batch V"]:
  """Returns softmax(logits / temperature) of the tokens that are kept; no derivatives.

  Args:
    logits: float32.
    temperature: above 0.
    top_k: keep the k most likely and their ties; 0 keeps all.
    top_p: keep the fewest that reach this mass, and their ties; 0 keeps all. At most
      one of the two.

  Returns:
    float32 probabilities; NaN, all of a row's, where a logit is NaN or infinity.
  """
  call = jax.ffi.ffi_call(
    "specdec_adjust",
    jax.ShapeDtypeStruct(logits.shape, logits.dtype),
    vmap_method="broadcast_all",
  )
  settings = {"temperature": np.float32(temperature), "top_p": np.float32(top_p)}
  return call(logits, top_k=np.int64(top_k), **settings)
