"""Products of few rows by our kernel for GPUs (few.cuh).

Shapes: R rows, I inputs, O outputs.
"""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

MOST_ROWS = 8
MOST_MATRICES = 3


@dataclasses.dataclass(frozen=True)
class Tuning:
  """The division of a product, which determines the order of sums.

  Attributes:
    cluster: number of blocks that divide the inputs: 1, 2, 4 or 8.
    unroll: number of blocks of 16 inputs that a warp reads ahead: 1 or 2.
  """

  cluster: int
  unroll: int


def tuning(bits: int, outputs: int) -> Tuning:
  """Returns the division of a product, for any number of rows.

  The divisions are the fastest of the divisions tried at XXL's shapes on an H100.

  Args:
    bits: bits of a weight.
    outputs: number of outputs of all matrices that are multiplied together.
  """
  if outputs > 24_000:
    return Tuning(cluster=1, unroll=2)
  if outputs > 8_000:
    return Tuning(cluster=2, unroll=1 if bits == 16 else 2)
  return Tuning(cluster=4, unroll=1) if bits == 16 else Tuning(cluster=8, unroll=1)


@dataclasses.dataclass(frozen=True)
class FewWeights:
  """A matrix in 16, 8 or 4 bits.

  Attributes:
    codes: bfloat16 or int8 [I, O], or uint8 [I, O / 2]. A uint8 holds two columns in
      two's complement, the even column in the lower half.
    scales: scales of the columns; None for bfloat16.
  """

  codes: Array
  scales: Float[Array, "O"] | None = None

  @property
  def bits(self) -> int:
    """The bits of a weight."""
    return {"bfloat16": 16, "int8": 8, "uint8": 4}[self.codes.dtype.name]

  @property
  def outputs(self) -> int:
    """The number of columns."""
    return self.codes.shape[1] * (2 if self.bits == 4 else 1)


jax.tree_util.register_dataclass(FewWeights, ["codes", "scales"], [])


def multiply(
  x: Float[Array, "R I"], *matrices: FewWeights
) -> tuple[Float[Array, "R _"], ...]:
  """Returns x W for each W. All matrices have the same number of bits.

  Args:
    x: bfloat16 rows, at most `MOST_ROWS`.
    *matrices: weights W, at most `MOST_MATRICES`.
  """
  empty = jnp.zeros(0, jnp.bfloat16)
  bits = matrices[0].bits
  division = tuning(bits, sum(m.outputs for m in matrices))
  arguments = [x]
  for matrix in matrices:
    arguments += [matrix.codes, empty if matrix.scales is None else matrix.scales]
  shapes = [jax.ShapeDtypeStruct((len(x), m.outputs), jnp.bfloat16) for m in matrices]
  call = jax.ffi.ffi_call("specdec_few", shapes, vmap_method="sequential")
  products = call(
    *arguments,
    bits=np.int64(bits),
    cluster=np.int64(division.cluster),
    unroll=np.int64(division.unroll),
  )
  return tuple(products)
