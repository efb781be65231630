"""Products of few rows by our kernel for GPUs (few.cuh).

Shapes: R rows, I inputs, O outputs.
"""

from collections.abc import Mapping

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

MOST_ROWS = 8
MOST_MATRICES = 3


def cluster_of(outputs: int) -> int:
  """Returns the number of blocks that divide the inputs, for any number of rows.

  The number determines the order of sums. The numbers are the fastest of the numbers
  tried at XXL's shapes on an H100.

  Args:
    outputs: number of outputs of all matrices that are multiplied together.
  """
  if outputs > 24_000:
    return 1
  return 2 if outputs > 8_000 else 8


def multiply(
  x: Float[Array, "R I"], *matrices: Mapping[str, Array]
) -> tuple[Float[Array, "R _"], ...]:
  """Returns x W for each W. All matrices have the same number of bits.

  Args:
    x: bfloat16 rows, at most `MOST_ROWS`.
    *matrices: rounded matrices, at most `MOST_MATRICES`: `scales` [1, O], and `codes`,
      int8 [I, O] or uint8 [I, O / 2]. A uint8 holds two columns in two's complement,
      the even column in the lower half.
  """
  widths = [matrix["scales"].shape[1] for matrix in matrices]
  shapes = [jax.ShapeDtypeStruct((len(x), width), jnp.bfloat16) for width in widths]
  products = jax.ffi.ffi_call("specdec_few", shapes)(
    x,
    *(matrix[part] for matrix in matrices for part in ("codes", "scales")),
    bits=np.int64(8 if matrices[0]["codes"].dtype == jnp.int8 else 4),
    cluster=np.int64(cluster_of(sum(widths))),
  )
  return tuple(products)
