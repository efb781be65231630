"""A network's weights in 8 or 4 bits: rounded once, multiplied without dequantization.

A matrix W [I, O] becomes integers, symmetric about 0, and a scale for each column, or
for each group of inputs of a column. The rounded weight is
scale[i // group, o] code[i, o], with an error of at most half a scale. Codes and scales
replace the matrix among the parameters (`within`), and the network multiplies by codes
and scales. An embedding is not replaced, because the network looks up rows. If the
embedding also projects to the logits, a rounded copy beside the embedding projects to
the logits.

Shapes: I inputs, O outputs, G groups.
"""

import dataclasses
import functools
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

import flax
import jax
import jax.numpy as jnp
import numpy as np
from flax.linen.partitioning import AxisMetadata
from jaxtyping import Array, Float, Int8

from specdec_t5x.core.knobs import invalid, is_whole
from specdec_t5x.native import platforms
from specdec_t5x.native.cuda import choice as gpu_choice
from specdec_t5x.native.cuda import few
from specdec_t5x.native.cuda import library as of_gpu
from specdec_t5x.network import products
from specdec_t5x.network.config import WEIGHTS

# A rounded matrix: `codes` and `scales`.
Matrix = Mapping[str, Array]
DTYPES = {8: jnp.int8, 4: jnp.int4}
# Names of the rounded matrices outside sublayers. `LOGITS` is the projection to the
# vocabulary. `INPUT` is the encoder and the keys and values of cross-attention, which
# are computed once per input.
LOGITS, INPUT = "logits", "input"
PROJECTION = ("decoder", "logits_dense", "kernel")
# The kind of sublayer of each module.
_MODULES = {
  "self_attention": "self",
  "encoder_decoder_attention": "cross",
  "mlp": "mlp",
}
# Our kernels read the codes of 16 columns together, and of at least 8 inputs.
_PANEL, _STEP = 16, 8


@dataclasses.dataclass(frozen=True)
class Rounding:
  """The settings of rounding."""

  bits: int = 8  # Bits of a code, 8 or 4.
  group: int = 0  # Number of inputs that share a scale in each column; 0 is all.
  # Names of sublayers that are not rounded, for example 'mlp_5', 'logits' and
  # 'input'.
  whole: Sequence[str] = ()
  # Layout of the codes: 'xla', 'panels' of our kernels for CPUs, or 'pairs' of our
  # kernel for GPUs. With 'pairs', codes of 4 bits have two columns per byte in matrices
  # that the kernel supports.
  layout: str = "xla"

  def __post_init__(self):
    if self.bits not in DTYPES:
      raise invalid("bits", f"one of {sorted(DTYPES)}", self.bits)
    if not is_whole(self.group, 0) or self.group % 8:
      expected = "a multiple of 8 (inputs per scale), or 0 (one scale per column)"
      raise invalid("group", expected, self.group)
    if isinstance(self.whole, str) or not all(isinstance(n, str) for n in self.whole):
      expected = "names of sublayers, or 'logits', as ('mlp_5', 'logits')"
      raise invalid("whole", expected, self.whole)
    # gin passes a list, which would make the object unhashable.
    object.__setattr__(self, "whole", tuple(self.whole))

  def __call__(self, params: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the rounded matrices of a network's parameters, at the same paths."""
    flat = flax.traverse_util.flatten_dict(params)
    if _are_rounded(flat):
      raise ValueError(
        "Expected the parameters of a checkpoint, got rounded parameters. Round the "
        "restored parameters (`load_model`)."
      )
    matrices = {}
    for path, matrix in flat.items():
      if _name(path, flat) in (None, *self.whole):
        continue
      if path[-1] == "embedding":
        matrix = matrix.T
        path = (*path[:-1], LOGITS)
      matrices[path] = rounded_matrix(matrix, self.bits, self.group, self.layout)
    return flax.traverse_util.unflatten_dict(matrices)


def of_weights(config: Any) -> Rounding | None:
  """Returns the rounding of all weights of a network; None without rounding."""
  bits = WEIGHTS[getattr(config, "weights", "float32")]
  return Rounding(bits, layout=layout_for(config)) if bits else None


def within(params: Mapping[str, Any], made: Mapping[str, Any]) -> dict[str, Any]:
  """Returns parameters, or axes of parameters, with rounded matrices at their paths."""
  flat = flax.traverse_util.flatten_dict(params)
  flat_matrices = flax.traverse_util.flatten_dict(made)
  replaced = {path[:-1] for path in flat_matrices}
  kept = {}
  for path, array in flat.items():
    matrix_path = (*path[:-1], path[-1].removesuffix("_axes"))
    # The path of a matrix, or of the codes and scales of a matrix.
    if matrix_path not in replaced and path[:-1] not in replaced:
      kept[path] = array
  return flax.traverse_util.unflatten_dict(kept | flat_matrices)


def check(config: Any, params: Mapping[str, Any]) -> None:
  """Raises a ValueError if parameters do not match the network's `weights`."""
  flat = flax.traverse_util.flatten_dict(params)
  if _are_rounded(flat) != (of_weights(config) is not None):
    raise ValueError(
      f"Expected parameters in weights={config.weights!r}, got other parameters. Load "
      "network and parameters with `load_model(.., weights=..)`."
    )


def _are_rounded(flat: Collection[Sequence[str]]) -> bool:
  return any(path[-1] == "codes" for path in flat)


def axes_of(made: Mapping[str, Any], params_axes: Mapping[str, Any]) -> dict[str, Any]:
  """Returns the logical axes of rounded matrices.

  Args:
    made: rounded matrices.
    params_axes: logical axes of the network's parameters.
  """
  flat = flax.traverse_util.flatten_dict(params_axes)
  axes = {}
  for path in flax.traverse_util.flatten_dict(made):
    *matrix_path, part = path
    if not matrix_path:
      # The weights of a draft's step are replicated on all devices.
      names = (None,) * made[part].ndim
      axes[f"{part}_axes",] = AxisMetadata(names=names)
      continue
    if matrix_path[-1] == LOGITS:
      outputs, inputs = flat[*matrix_path[:-1], "embedding_axes"].names
    else:
      inputs, outputs = flat[*matrix_path[:-1], f"{matrix_path[-1]}_axes"].names
    names = (inputs if part == "codes" else None, outputs)
    axes[*matrix_path, f"{part}_axes"] = AxisMetadata(names=names)
  return flax.traverse_util.unflatten_dict(axes)


def size(tree: Any) -> int:
  """Returns the bytes of arrays, with half a byte per int4 number."""
  arrays = jax.tree.leaves(tree)
  return sum(x.size * jax.dtypes.itemsize_bits(x.dtype) for x in arrays) // 8


def layout_for(config: Any) -> str:
  """Returns the layout of codes for the kernels of a network (`Rounding.layout`)."""
  choice = getattr(config, "products", "xla")
  if choice == "xla":
    return "xla"
  if config.dtype == "bfloat16" and of_gpu.problem() is None:
    return "pairs"
  return "panels" if products.are_native(choice, 1, config.dtype) else "xla"


def multiply(
  choice: str, x: Float[Array, "*batch I"], *kernels: Matrix
) -> tuple[Float[Array, "*batch _"], ...]:
  """Returns x W for each rounded W.

  Args:
    choice: one of `products.PRODUCTS`.
    x: rows.
    *kernels: rounded matrices.
  """
  rows = x.size // max(x.shape[-1], 1)
  is_few = 0 < rows <= few.MOST_ROWS and len(kernels) <= few.MOST_MATRICES
  # The choice is the same for any number of rows, so that plain and speculative
  # decoding multiply in the same way.
  if (choice != "xla" and x.dtype == jnp.bfloat16 and is_few) and all(
    gpu_choice.CHOICES.is_used(_few_key(kernel)) for kernel in kernels
  ):
    return _few_multiply(x, *kernels)
  # Our kernels take any number of rows, because XLA has to reorder packed codes first.
  is_native = x.size > 0 and products.are_native(choice, 1, str(x.dtype))
  if is_native and kernels[0]["codes"].ndim > 2:
    return _native_multiply(x, *kernels)
  return _xla_multiply(x, *kernels)


def _name(path: Sequence[str], params: Collection[Sequence[str]]) -> str | None:
  """Returns the name of a parameter in `Rounding.whole`; None without rounding.

  >>> _name(("decoder", "layers_3", "mlp", "wo", "kernel"), ())
  'mlp_3'
  """
  if path[-1] == "embedding":
    is_read = path[0] == "encoder_embedder" or PROJECTION in params
    return None if is_read else LOGITS
  if path[-1] != "kernel":
    return None
  if path == PROJECTION:
    return LOGITS
  if path[0] == "encoder":
    return INPUT
  kind = _MODULES[path[2]]
  if kind == "cross" and path[3] in ("key", "value"):
    return INPUT
  return f"{kind}_{path[1].removeprefix('layers_')}"


def contests(
  config: Any, params: Mapping[str, Any], calls: int
) -> Iterator[tuple[Any, gpu_choice.Contest]]:
  """Yields the key and the contest of each shape of matrices that `few` multiplies.

  Args:
    config: configuration of the network.
    params: parameters of the network, rounded or not.
    calls: number of products for each number of rows.
  """
  if layout_for(config) != "pairs":
    return
  flat = flax.traverse_util.flatten_dict(params)
  matrices = {}
  for path, codes in flat.items():
    # Our kernel does not multiply in float32, the dtype of logits.
    is_head = LOGITS in path or set(PROJECTION) <= set(path)
    if path[-1] == "codes" and not is_head:
      matrix = {"codes": codes, "scales": flat[*path[:-1], "scales"]}
      matrices.setdefault(_few_key(matrix), matrix)
  for key, matrix in matrices.items():
    if key:
      yield key, _contest(matrix, calls)


def _contest(matrix: Matrix, calls: int) -> gpu_choice.Contest:
  """Returns the contest of a matrix's products of 1 to 8 rows."""
  inputs, columns = len(matrix["codes"]), matrix["scales"].shape[1]
  bits = 8 if matrix["codes"].dtype == jnp.int8 else 4
  shape = calls, few.MOST_ROWS, inputs
  blocks = np.random.default_rng(0).normal(size=shape)

  def run(multiply, dtype):
    x = jnp.asarray(blocks, jnp.bfloat16).astype(dtype)

    @jax.jit
    def multiply_all(x, matrix):
      def all_widths(x):
        products = []
        for rows in range(1, few.MOST_ROWS + 1):
          products += multiply(x[:rows], matrix)
          # Without the barrier, XLA merges all products into one.
          x, products = jax.lax.optimization_barrier((x, products))
        return jnp.concatenate(products)

      return jax.lax.map(all_widths, x)

    return functools.partial(multiply_all, x, matrix)

  return gpu_choice.Contest(
    f"Products of 1 to {few.MOST_ROWS} rows by {inputs} x {columns} in {bits} bits",
    run(_few_multiply, jnp.bfloat16),
    run(_xla_multiply, jnp.bfloat16),
    run(_xla_multiply, jnp.float32),
  )


def _few_key(matrix: Matrix) -> tuple[Any, ...] | None:
  """Returns the key of a choice; None for a matrix that the kernel can't multiply."""
  codes = matrix["codes"]
  groups, columns = matrix["scales"].shape
  is_divided = codes.ndim != 2 or groups > 1 or len(codes) % 16 or columns % 16
  if is_divided or codes.dtype not in (jnp.int8, jnp.uint8):
    return None
  return "few", len(codes), columns, codes.dtype.name


def _few_multiply(x, *matrices):
  results = few.multiply(x.reshape(-1, x.shape[-1]), *matrices)
  return tuple(y.reshape(*x.shape[:-1], y.shape[-1]) for y in results)


@functools.partial(jax.jit, static_argnums=(1, 2, 3))
def rounded_matrix(
  matrix: Float[Array, "I O"], bits: int, group: int, layout: str
) -> dict[str, Array]:
  """Returns codes [G * group, O] and scales [G, O]; codes of inputs beyond I are 0."""
  inputs, columns = matrix.shape
  group = group or inputs + -inputs % _STEP
  matrix = jnp.pad(matrix.astype(jnp.float32), ((0, -inputs % group), (0, 0)))
  grouped = matrix.reshape(-1, group, columns)
  most = 2 ** (bits - 1) - 1
  scales = (jnp.abs(grouped).max(axis=1) / most).astype(jnp.bfloat16)
  steps = scales.astype(jnp.float32)[:, None]
  codes = jnp.round(grouped / jnp.where(steps > 0, steps, 1.0)).clip(-most, most)
  is_fit = bits == 4 and len(scales) == 1 and not (inputs % 16 or columns % 16)
  if layout == "panels":
    codes = _packed(codes.astype(jnp.int8), bits)
  elif layout == "pairs" and is_fit:
    halves = codes[0].astype(jnp.int8).astype(jnp.uint8) & 15
    codes = halves[:, ::2] | halves[:, 1::2] << 4
  else:
    # Programs compiled ahead of time, as in T5X, accept no int4 arrays on CPU.
    dtype = jnp.int8 if jax.default_backend() == "cpu" else DTYPES[bits]
    codes = codes.reshape(matrix.shape).astype(dtype)
  return {"codes": codes, "scales": scales}


def _packed(codes: Int8[Array, "G group O"], bits: int) -> Array:
  """Returns codes [P, G, vectors, 64] in the layout of `native/rounded.cc`.

  Codes of 4 bits are stored as code + 8, from 1 to 15, two per byte.
  """
  codes = jnp.pad(codes, ((0, 0), (0, 0), (0, -codes.shape[-1] % _PANEL)))
  groups, group, _ = codes.shape
  # [G, vectors, inputs, P, 16] to [P, G, vectors, 16, inputs].
  codes = codes.reshape(groups, group // 4, 4, -1, _PANEL).transpose(3, 0, 1, 4, 2)
  codes = codes.reshape(-1, groups, group // 4, 4 * _PANEL)
  if bits == 8:
    return codes
  halves = (codes + 8).astype(jnp.uint8)
  return halves[:, :, ::2] | halves[:, :, 1::2] << 4


def unpacked(codes: Array, columns: int) -> Int8[Array, "_ O"]:
  """Returns packed codes in the layout of XLA."""
  panels, groups = codes.shape[:2]
  if codes.dtype == jnp.uint8:
    halves = jnp.stack([codes & 15, codes >> 4], axis=3).astype(jnp.int8) - 8
    codes = halves.reshape(panels, groups, -1, 4 * _PANEL)
  codes = codes.reshape(panels, groups, -1, _PANEL, 4).transpose(1, 2, 4, 0, 3)
  return codes.reshape(-1, panels * _PANEL)[:, :columns]


def _xla_multiply(x, *matrices):
  return tuple(_xla_product(x, m["codes"], m["scales"]) for m in matrices)


def _xla_product(x, codes, scales):
  groups, columns = scales.shape
  if codes.ndim > 2:
    codes = unpacked(codes, columns)
  elif codes.dtype == jnp.uint8:
    # A byte holds two columns. Shifts of signed numbers extend the sign.
    pairs = codes.astype(jnp.int8)
    codes = jnp.stack([pairs << 4 >> 4, pairs >> 4], axis=-1).reshape(-1, columns)
  scales = scales.astype(x.dtype)
  if groups == 1:
    return jnp.dot(x, codes.astype(x.dtype)[: x.shape[-1]]) * scales[0]
  batch = x.shape[:-1]
  x = jnp.pad(x, (*[(0, 0)] * len(batch), (0, codes.shape[0] - x.shape[-1])))
  group = codes.shape[0] // groups
  x = x.reshape(*batch, groups, group)
  codes = codes.reshape(groups, group, columns)
  sums = jnp.einsum("...gi,gio->...go", x, codes.astype(x.dtype))
  return (sums * scales).sum(axis=-2)


@functools.partial(platforms.choose_kernel_on_cpu, otherwise=_xla_multiply)
def _native_multiply(x, *matrices):
  columns = [matrix["scales"].shape[1] for matrix in matrices]
  results = [jax.ShapeDtypeStruct((*x.shape[:-1], n), x.dtype) for n in columns]
  call = jax.ffi.ffi_call("specdec_rounded", results)
  arrays = [matrix[part] for matrix in matrices for part in ("codes", "scales")]
  return tuple(call(x, *arrays))
