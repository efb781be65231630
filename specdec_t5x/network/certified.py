"""The projection to a large vocabulary if only the argmax of the logits is used.

Greedy decoding uses the argmax of h W. Codes of W in 8 bits take a quarter of the bytes
of W and give each logit up to a proven bound (docs/math.md, "Certified heads"). The
logits that may still be the largest are computed as in `products.multiply`, so the
argmax is the same bit for bit, ties included. All other logits are computed from the
codes alone.

Shapes: I inputs, O outputs.
"""

import functools
from collections.abc import Mapping
from typing import Any

import flax
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from specdec_t5x.core.knobs import KnobError
from specdec_t5x.native import library, platforms
from specdec_t5x.network import products, rounded
from specdec_t5x.network.rounded import Matrix

# The name of a screened head among a decode's derived parameters.
NAME = "head"
# Names of the full-precision head in a screen: W, or the embedding W^T.
WEIGHTS, TABLE = "weights", "table"
# 'auto' screens heads with at least this many weights. Smaller matrices fit into the
# processor's caches.
LEAST = 1 << 23


def problem(config: Any) -> str | None:
  """Returns why a network's head can't be certified, or None."""
  if config.logits_cap:
    return "the logits are capped, so the cap can make different large logits equal"
  if rounded.of_weights(config):
    return "the weights already have 8 bits"
  if config.dtype == "float32" and rounded.layout_for(config) == "panels":
    return None
  return library.problem() or (
    "the head needs native products, but XLA's products and bfloat16 do not use native "
    "products"
  )


def is_used(config: Any, reads_argmaxes: bool) -> bool:
  """Returns whether a decode's target has a certified head.

  Args:
    config: configuration of the target.
    reads_argmaxes: whether only the argmax of the target's logits is used.

  Raises:
    ValueError: if head is 'certified' and the head can't be certified.
  """
  choice = getattr(config, "head", "full")
  if choice == "certified":
    reason = problem(config)
    if not reads_argmaxes:
      reason = (
        "more of the target's logits than the argmax is used (by a temperature above "
        "0, a rule with probabilities, or a draft that learns)"
      )
    if reason:
      raise KnobError(
        "{head}='certified' is not available: {reason}. Use 'auto' or 'full'.",
        reason=reason,
      )
    return True
  if choice == "full" or not reads_argmaxes or problem(config):
    return False
  large = config.vocab_size * config.emb_dim >= LEAST
  return large and library.bytes_by() != "portable C++"


def screen(params: Mapping[str, Any]) -> dict[str, Any]:
  """Returns the codes of a network's head, their scales and their error bounds."""
  place, name, weights = _head(params)
  kernel = weights if name == WEIGHTS else weights.T
  codes = rounded.rounded_matrix(kernel, bits=8, group=0, layout="panels")
  screened = {**codes, "bounds": _bounds(kernel, codes)}
  return flax.traverse_util.unflatten_dict({place: screened})


def within(params: Mapping[str, Any], made: Mapping[str, Any]) -> dict[str, Any]:
  """Returns a network's parameters with the result of `screen` beside the head."""
  place, name, weights = _head(params)
  screened = functools.reduce(lambda tree, key: tree[key], place, made)
  screened = {place: {**screened, name: weights}}
  return rounded.within(params, flax.traverse_util.unflatten_dict(screened))


def multiply(
  choice: str, x: Float[Array, "*batch I"], kernel: Matrix
) -> Float[Array, "*batch O"]:
  """Returns x W, exact for each number that may be the largest of a row.

  Args:
    choice: one of `products.PRODUCTS`.
    x: rows.
    kernel: result of `screen`, with W as `weights` or the embedding W^T as `table`.
  """
  name = TABLE if TABLE in kernel else WEIGHTS
  kernel = {**kernel, name: kernel[name].astype(x.dtype)}
  if products.are_native(choice, x.size // x.shape[-1], str(x.dtype)):
    return _native_multiply(x, kernel)
  return _full_multiply(choice, x, kernel)


def _head(params: Mapping[str, Any]) -> tuple[tuple[str, ...], str, Array]:
  """Returns the path of a screen among parameters, and the head's name and array."""
  flat = flax.traverse_util.flatten_dict(params)
  if rounded.PROJECTION in flat:
    return rounded.PROJECTION, WEIGHTS, flat[rounded.PROJECTION]
  embedder = ("token_embedder",)
  if (*embedder, "embedding") not in flat:
    embedder = ("decoder", *embedder)
  return (*embedder, rounded.LOGITS), TABLE, flat[*embedder, "embedding"]


@jax.jit
def _bounds(kernel: Float[Array, "I O"], made: Matrix) -> Float[Array, "2 O"]:
  """Returns two factors of the bound on each column's error.

  The first factor is multiplied by |h|, the second by the rounding error of h.
  """
  inputs, columns = kernel.shape
  codes = rounded.unpacked(made["codes"], columns)[:inputs].astype(jnp.float32)
  scales = made["scales"][0].astype(jnp.float32)
  # Norms are computed in steps, because squares of small weights underflow to 0.
  steps = jnp.where(scales > 0, scales, 1.0)
  weights = kernel.astype(jnp.float32) / steps

  def norm(x):
    return jnp.sqrt(jnp.square(x).sum(axis=0)) * steps

  rounding = (inputs + 16) * 2.0**-23
  codes_norm = norm(codes)
  error_norm = norm(weights - codes) + rounding * (norm(weights) + codes_norm)
  return jnp.stack([error_norm, codes_norm]) * (1 + rounding) + 1e-30


def _full_multiply(choice, x, kernel):
  if TABLE in kernel:
    return products.multiply_by_rows(choice, x, kernel[TABLE])
  return products.multiply(choice, x, kernel[WEIGHTS])[0]


_on_cpu = platforms.choose_kernel_on_cpu


@functools.partial(_on_cpu, otherwise=functools.partial(_full_multiply, "xla"))
def _native_multiply(x, kernel):
  by_rows = TABLE in kernel
  columns = kernel["scales"].shape[1]
  shape = jax.ShapeDtypeStruct((*x.shape[:-1], columns), x.dtype)
  call = jax.ffi.ffi_call("specdec_certified", shape)
  parts = (TABLE if by_rows else WEIGHTS, "codes", "scales", "bounds")
  return call(x, *(kernel[part] for part in parts), by_rows=by_rows)
