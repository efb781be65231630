"""Products of few rows by our kernel for GPUs (few.cuh).

Shapes: R rows, I inputs, O outputs.
"""

import dataclasses
from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

MOST_ROWS = 8
MOST_MATRICES = 3
PLAIN, NORM, GATED_GELU = range(3)


@dataclasses.dataclass(frozen=True)
class Tuning:
  """How a product is divided; other values give other orders of sums.

  Attributes:
    cluster: blocks that divide the inputs: 1, 2, 4 or 8.
    unroll: blocks of 16 inputs that a warp reads ahead: 1 or 2.
  """

  cluster: int
  unroll: int


def tuning(bits: int, outputs: int) -> Tuning:
  """Returns how a product is divided, whatever the number of its rows.

  Of the divisions that were tried at XXL's shapes on an H100 the fastest.

  Args:
    bits: of a weight.
    outputs: of all matrices that are multiplied together.
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
    codes: bfloat16 or int8 [I, O], or uint8 [I, O / 2] with two columns each, the even
      one in the lower half, in two's complement.
    scales: of the columns; None in bfloat16.
  """

  codes: Array
  scales: Float[Array, "O"] | None = None

  @property
  def bits(self) -> int:
    """Of a weight."""
    return {"bfloat16": 16, "int8": 8, "uint8": 4}[self.codes.dtype.name]

  @property
  def outputs(self) -> int:
    """The columns."""
    return self.codes.shape[1] * (2 if self.bits == 4 else 1)


jax.tree_util.register_dataclass(FewWeights, ["codes", "scales"], [])


def rounded(matrix: Float[Array, "I O"], bits: int) -> FewWeights:
  """Returns a matrix rounded to so many bits, with a scale for each column."""
  if bits == 16:
    return FewWeights(matrix.astype(jnp.bfloat16))
  most = 2 ** (bits - 1) - 1
  largest = jnp.abs(matrix).max(axis=0).astype(jnp.float32)
  scales = (largest / most).astype(jnp.bfloat16)
  steps = jnp.where(scales > 0, scales, 1).astype(jnp.float32)
  codes = jnp.round(matrix / steps).clip(-most, most).astype(jnp.int8)
  if bits == 4:
    halves = (codes & 15).astype(jnp.uint8)
    codes = halves[:, ::2] | halves[:, 1::2] << 4
  return FewWeights(codes, scales)


def multiply(
  x: Float[Array, "R I"],
  *matrices: FewWeights,
  norm: Float[Array, "I"] | None = None,
  gate: Float[Array, "R I"] | None = None,
  residuals: Sequence[Float[Array, "R _"]] = (),
  divided: Tuning | None = None,
  following: FewWeights | None = None,
  following_bytes: int = 0,
) -> tuple[Float[Array, "R _"], ...]:
  """Returns x W for each W, of one number of bits.

  Args:
    x: bfloat16, at most `MOST_ROWS` rows.
    *matrices: at most `MOST_MATRICES`.
    norm: the scales of T5's layer norm of x, which is multiplied.
    gate: what is multiplied is gelu(gate) x.
    residuals: added to the products, one for each.
    divided: in place of `tuning`.
    following: the matrix that is multiplied next, whose first `following_bytes` come to
      the GPU's cache while this product ends.
    following_bytes: of them.
  """
  nothing = jnp.zeros(0, jnp.bfloat16)
  bits = matrices[0].bits
  how = divided or tuning(bits, sum(m.outputs for m in matrices))
  first, other, kind = x, nothing, PLAIN
  if norm is not None:
    other, kind = norm, NORM
  if gate is not None:
    first, other, kind = gate, x, GATED_GELU
  given = []
  for i, matrix in enumerate(matrices):
    scales = nothing if matrix.scales is None else matrix.scales
    given += [matrix.codes, scales, residuals[i] if residuals else nothing]
  shapes = [jax.ShapeDtypeStruct((len(x), m.outputs), jnp.bfloat16) for m in matrices]
  call = jax.ffi.ffi_call("specdec_few", shapes, vmap_method="sequential")
  return tuple(
    call(
      *(first, other, nothing if following is None else following.codes, *given),
      bits=np.int64(bits),
      input=np.int64(kind),
      cluster=np.int64(how.cluster),
      unroll=np.int64(how.unroll),
      next_bytes=np.int64(following_bytes),
    )
  )
