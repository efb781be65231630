"""A network's products, norms and attention: XLA's, or of few rows on CPU our own.

XLA's products on CPU are made for many rows: two cost it twice one, where reading the
weights is all the work. `native/few_rows.cc` reads them once for all rows, and computes
a row alike whatever the others are. Sums are float32, of bfloat16 numbers, too.

Shapes: B batch, Q queries, S slots, H heads, K head width, I inputs.
"""

import functools
import sys
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from specdec_t5x.native import library, platforms
from specdec_t5x.native.cuda import library as of_gpu

PRODUCTS = ("auto", "native", "xla")
# More rows are bound by arithmetic, at which XLA's float32 products are as good. Its
# bfloat16 products are slower, and a row's numbers depend on how many rows there are.
MAX_ROWS = 128
DTYPES = ("float32", "bfloat16")
# Added to the scores of what is masked, T5X's value: its weights are exactly zero.
MASKED = -1e10


def check(choice: str, dtype: str) -> None:
  """Raises a ValueError where this choice among `PRODUCTS` can't be had."""
  if choice not in PRODUCTS:
    raise ValueError(f"PRODUCTS must be one of {PRODUCTS}, got {choice!r}.")
  if choice != "native":
    return
  is_gpu = jax.default_backend() == "gpu"
  kernels, own = (of_gpu, ("bfloat16",)) if is_gpu else (library, DTYPES)
  if dtype not in own or kernels.problem():
    names = " and ".join(own)
    reason = kernels.problem() or f"ACTIVATION_DTYPE is {dtype!r}; they are of {names}"
    raise ValueError(f"PRODUCTS='native' can't be had: {reason}. Use 'auto' or 'xla'.")


def are_native(choice: str, rows: int, dtype: Any, most: int = MAX_ROWS) -> bool:
  """Returns whether products of so many rows, `most` at most, are our own kernels'."""
  is_few = 0 < rows <= most and dtype in DTYPES
  return is_few and choice != "xla" and library.problem() is None


def most_rows(dtype: Any) -> int:
  """Returns how many rows our own products take in activations of this dtype."""
  return sys.maxsize if str(dtype) == "bfloat16" else MAX_ROWS


def multiply(
  choice: str, x: Float[Array, "*batch I"], *kernels: Float[Array, "I _"]
) -> tuple[Float[Array, "*batch _"], ...]:
  """Returns x W for each W: together, where that reads `x` once.

  Args:
    choice: one of `PRODUCTS`.
    x: the rows.
    *kernels: the matrices, of the dtype of `x`, or in bfloat16.
  """
  rows = x.size // max(x.shape[-1], 1)  # None, where there is nothing to add.
  if are_native(choice, rows, str(x.dtype), most_rows(x.dtype)):
    return _native_multiply(x, kernels)
  return _xla_multiply(x, kernels)


def multiply_by_rows(
  choice: str, x: Float[Array, "*batch I"], table: Float[Array, "O I"]
) -> Float[Array, "*batch O"]:
  """Returns x E^T for an embedding E, each of whose rows lies together.

  Args:
    choice: one of `PRODUCTS`.
    x: the rows.
    table: E, of the dtype of `x`, or in bfloat16.
  """
  if are_native(choice, x.size // max(x.shape[-1], 1), str(x.dtype)):
    return _native_multiply_by_rows(x, table)
  return _xla_multiply_by_rows(x, table)


def normalize(
  choice: str,
  x: Float[Array, "*batch D"],
  scale: Float[Array, "D"],
  most: int = MAX_ROWS,
) -> Float[Array, "*batch D"]:
  """Returns x / sqrt(mean(x^2) + 1e-6) scale, T5's layer norm.

  Args:
    choice: one of `PRODUCTS`.
    x: the rows.
    scale: of the dtype of the result; the mean is of float32.
    most: rows that our own kernel takes.
  """
  if are_native(choice, x.size // max(x.shape[-1], 1), str(scale.dtype), most):
    return _native_normalize(x, scale)
  return _xla_normalize(x, scale)


def attend(
  choice: str,
  query: Float[Array, "B Q H K"],
  key: Float[Array, "B H S K"],
  value: Float[Array, "B H S K"],
  bias: Float[Array, "#B #H #Q S"],
  most: int = MAX_ROWS,
) -> Float[Array, "B Q H K"]:
  """Returns softmax(query key + bias) value; what is `MASKED` has no weight.

  Our own kernel computes scores and weights in float32, whatever the dtype.
  """
  if are_native(choice, query.shape[0] * query.shape[1], str(query.dtype), most):
    # Features that are float32 stay so in a layer whose activations are bfloat16.
    dtype = jnp.result_type(query, value)
    return _native_attend(*(x.astype(dtype) for x in (query, key, value, bias)))
  return xla_attend(query, key, value, bias)


def _xla_multiply(x, kernels):
  return tuple(jnp.dot(x, kernel) for kernel in kernels)


def _xla_multiply_by_rows(x, table):
  return jnp.dot(x, table.T)


def _xla_normalize(x, scale):
  x = x.astype(jnp.float32)
  mean_square = jnp.mean(jnp.square(x), axis=-1, keepdims=True)
  return (x * jax.lax.rsqrt(mean_square + 1e-6)).astype(scale.dtype) * scale


def capped(x: Float[Array, "*shape"], cap: float) -> Float[Array, "*shape"]:
  """Returns cap tanh(x / cap), Gemma's soft cap; x itself where `cap` is 0."""
  return cap * jnp.tanh(x / cap) if cap else x


def xla_attend(
  query, key, value, bias, dtype=None, drop=lambda weights: weights, cap=0.0
):
  """As `attend`, by XLA; weights of `dtype`, some of which `drop` leaves out.

  Scores are capped before the bias.
  """
  scores = capped(jnp.einsum("bqhk,bhsk->bhqs", query, key), cap)
  scores = scores + bias.astype(query.dtype)
  weights = drop(jax.nn.softmax(scores).astype(dtype or query.dtype))
  return jnp.einsum("bhqs,bhsk->bqhk", weights, value)


_on_cpu = platforms.choose_kernel_on_cpu


@functools.partial(_on_cpu, otherwise=_xla_multiply)
def _native_multiply(x, kernels):
  shape = lambda w: jax.ShapeDtypeStruct((*x.shape[:-1], w.shape[1]), x.dtype)
  call = jax.ffi.ffi_call(
    "specdec_multiply", [shape(w) for w in kernels], vmap_method="sequential"
  )
  return tuple(call(x, *kernels))


@functools.partial(_on_cpu, otherwise=_xla_multiply_by_rows)
def _native_multiply_by_rows(x, table):
  shape = jax.ShapeDtypeStruct((*x.shape[:-1], len(table)), x.dtype)
  call = jax.ffi.ffi_call("specdec_by_rows", shape, vmap_method="sequential")
  return call(x, table)


@functools.partial(_on_cpu, otherwise=_xla_normalize)
def _native_normalize(x, scale):
  shape = jax.ShapeDtypeStruct(x.shape, scale.dtype)
  call = jax.ffi.ffi_call("specdec_normalize", shape, vmap_method="sequential")
  return call(x, scale)


@functools.partial(_on_cpu, otherwise=xla_attend)
def _native_attend(query, key, value, bias):
  call = jax.ffi.ffi_call(
    "specdec_attention",
    jax.ShapeDtypeStruct(query.shape, query.dtype),
    vmap_method="sequential",
  )
  # Positions add to a mask: half of it tells what is masked.
  return call(query, key, value, bias, masked=np.float32(MASKED / 2))
