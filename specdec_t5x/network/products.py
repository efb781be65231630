"""A network's products, norms and attention, by XLA or by our kernels for few rows.

XLA's products on CPU are optimised for many rows. With few rows, reading the weights
takes all of the time, and two rows cost XLA twice the time of one row.
`native/few_rows.cc` reads the weights once for all rows, and the result of a row does
not depend on other rows. Sums are in float32, also for bfloat16 numbers.

Shapes: B batch, Q queries, S slots, H heads, K head width, I inputs.
"""

import functools
import sys
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from specdec_t5x.core.knobs import KnobError, invalid
from specdec_t5x.native import library, platforms
from specdec_t5x.native.cuda import library as of_gpu

PRODUCTS = ("auto", "native", "xla")
# Products of more rows are bound by arithmetic, and XLA's float32 products are as fast
# as ours. XLA's bfloat16 products are slower, and the numbers of a row depend on the
# number of rows.
MAX_ROWS = 128
DTYPES = ("float32", "bfloat16")
# Added to the scores of masked positions, as in T5X. Masked weights are exactly zero.
MASKED = -1e10


def check(choice: str, dtype: str) -> None:
  """Raises a ValueError if a choice among `PRODUCTS` is not available."""
  if choice not in PRODUCTS:
    raise invalid("products", f"one of {PRODUCTS}", choice)
  if choice != "native":
    return
  is_gpu = jax.default_backend() == "gpu"
  kernels = of_gpu if is_gpu else library
  dtypes = ("bfloat16",) if is_gpu else DTYPES
  if dtype not in dtypes or kernels.problem():
    names = " and ".join(dtypes)
    reason = (
      kernels.problem()
      or f"activations have dtype {dtype!r}; native products support {names}"
    )
    raise KnobError(
      "{products}='native' is not available: {reason}. Use 'auto' or 'xla'.",
      reason=reason,
    )


def are_native(choice: str, rows: int, dtype: Any, most: int = MAX_ROWS) -> bool:
  """Returns whether our kernels compute products of `rows` rows, at most `most`."""
  is_few = 0 < rows <= most and dtype in DTYPES
  return is_few and choice != "xla" and library.problem() is None


def multiply(
  choice: str, x: Float[Array, "*batch I"], *kernels: Float[Array, "I _"]
) -> tuple[Float[Array, "*batch _"], ...]:
  """Returns x W for each W. Our kernels read `x` once for all matrices.

  Args:
    choice: one of `PRODUCTS`.
    x: rows.
    *kernels: matrices in the dtype of `x` or in bfloat16.
  """
  rows = x.size // max(x.shape[-1], 1)  # 0 if the sums are empty.
  most = sys.maxsize if x.dtype == "bfloat16" else MAX_ROWS
  if are_native(choice, rows, str(x.dtype), most):
    return _native_multiply(x, kernels)
  return _xla_multiply(x, kernels)


def multiply_by_rows(
  choice: str, x: Float[Array, "*batch I"], table: Float[Array, "O I"]
) -> Float[Array, "*batch O"]:
  """Returns x E^T for an embedding E with contiguous rows.

  Args:
    choice: one of `PRODUCTS`.
    x: rows.
    table: E, in the dtype of `x` or in bfloat16.
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
    x: rows.
    scale: scale in the dtype of the result; the mean is computed in float32.
    most: the most rows for our kernel.
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
  """Returns softmax(query key + bias) value; `MASKED` positions have weight 0.

  Our kernel computes scores and weights in float32 for any dtype.
  """
  if are_native(choice, query.shape[0] * query.shape[1], str(query.dtype), most):
    # float32 features stay float32 in a layer with bfloat16 activations.
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
  """Returns cap tanh(x / cap), Gemma's soft cap; returns `x` if `cap` is 0."""
  return cap * jnp.tanh(x / cap) if cap else x


def xla_attend(
  query, key, value, bias, *, dtype=None, drop=lambda weights: weights, cap=0.0
):
  """Like `attend`, by XLA, with dropout of weights that have the given dtype.

  `cap` is a soft cap of the scores before the bias; 0 is no cap.
  """
  scores = capped(jnp.einsum("bqhk,bhsk->bhqs", query, key), cap)
  scores = scores + bias.astype(query.dtype)
  weights = drop(jax.nn.softmax(scores).astype(dtype or query.dtype))
  return jnp.einsum("bhqs,bhsk->bqhk", weights, value)


_on_cpu = platforms.choose_kernel_on_cpu


@functools.partial(_on_cpu, otherwise=_xla_multiply)
def _native_multiply(x, kernels):
  batch = x.shape[:-1]
  results = [jax.ShapeDtypeStruct((*batch, w.shape[1]), x.dtype) for w in kernels]
  return tuple(jax.ffi.ffi_call("specdec_multiply", results)(x, *kernels))


@functools.partial(_on_cpu, otherwise=_xla_multiply_by_rows)
def _native_multiply_by_rows(x, table):
  shape = jax.ShapeDtypeStruct((*x.shape[:-1], len(table)), x.dtype)
  return jax.ffi.ffi_call("specdec_by_rows", shape)(x, table)


@functools.partial(_on_cpu, otherwise=_xla_normalize)
def _native_normalize(x, scale):
  shape = jax.ShapeDtypeStruct(x.shape, scale.dtype)
  return jax.ffi.ffi_call("specdec_normalize", shape)(x, scale)


@functools.partial(_on_cpu, otherwise=xla_attend)
def _native_attend(query, key, value, bias):
  shape = jax.ShapeDtypeStruct(query.shape, query.dtype)
  call = jax.ffi.ffi_call("specdec_attention", shape)
  # A bias may be a position bias plus `MASKED`. Half of `MASKED` separates the sums.
  return call(query, key, value, bias, masked=np.float32(MASKED / 2))
