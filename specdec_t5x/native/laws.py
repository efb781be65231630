"""Laws by our kernel (laws.cc), in programs for CPUs.

Shapes: V vocabulary.
"""

import jax
import numpy as np
from jaxtyping import Array, Float


def law(
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
    "specdec_laws",
    jax.ShapeDtypeStruct(logits.shape, logits.dtype),
    vmap_method="broadcast_all",
  )
  settings = {"temperature": np.float32(temperature), "top_p": np.float32(top_p)}
  return call(logits, top_k=np.int64(top_k), **settings)
