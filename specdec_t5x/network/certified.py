"""The projection to a large vocabulary where its largest number is all that is read.

Greedy decoding reads the argmax of h W. Codes of W in 8 bits are a quarter of its bytes
and say each logit up to a proven bound (docs/math.md, "Certified heads"). Those that
may still be the largest are computed as `products.multiply` does: so the argmax is the
same bit for bit, ties included. All others stay as the codes have them.

Shapes: I inputs, O outputs.
"""

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import flax
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from specdec_t5x.native import library, platforms
from specdec_t5x.network import products, rounded
from specdec_t5x.network.rounded import Matrix, Rounding

# What is made of the target's parameters goes by this name among a decode's.
NAME = "head"
# A head among what it is screened by: W, or W^T where it is the embedding.
WEIGHTS, TABLE = "weights", "table"
# By 'auto' from so many weights on: smaller matrices are read from caches.
LEAST = 1 << 23


def problem(config: Any) -> str | None:
  """Returns why a network's head can't be certified; None where it can."""
  if config.logits_cap:
    return "its logits are capped, which makes large ones equal that are not"
  if rounded.of_weights(config):
    return f"its weights are of 8 bits already (WEIGHTS={config.weights!r})"
  if config.dtype == "float32" and rounded.are_packed(config):
    return None
  return library.problem() or (
    "it needs our own products, which PRODUCTS='xla' and bfloat16 do without"
  )


def is_used(config: Any, reads_argmaxes: bool) -> bool:
  """Returns whether a decode's target has a certified head.

  Args:
    config: the target's.
    reads_argmaxes: whether of its logits nothing but the largest is read.

  Raises:
    ValueError: where HEAD is 'certified', and it can't be.
  """
  choice = getattr(config, "head", "full")
  if choice == "certified":
    reason = problem(config)
    if not reads_argmaxes:
      reason = (
        "more of the target's logits than their largest is read (by TEMPERATURE above "
        "0, a rule that looks at probabilities, a beam, a draft that learns)"
      )
    if reason:
      raise ValueError(
        f"HEAD='certified' can't be had: {reason}. Use 'auto' or 'full'."
      )
    return True
  if choice == "full" or not reads_argmaxes or problem(config):
    return False
  large = config.vocab_size * config.emb_dim >= LEAST
  return large and library.bytes_by() != "portable C++"


def screen(params: Mapping[str, Any]) -> dict[str, Any]:
  """Returns codes of a network's head, their scales, and how far off they are."""
  place, name, weights = _head(params)
  kernel = weights if name == WEIGHTS else weights.T
  as_head = {"decoder": {"logits_dense": {"kernel": kernel}}}
  made = Rounding(packed=True)(as_head)["decoder"]["logits_dense"]["kernel"]
  return _at(place, {**made, "bounds": _bounds(kernel, made)})


def within(params: Mapping[str, Any], made: Mapping[str, Any]) -> dict[str, Any]:
  """Returns a network's parameters with what `screen` made beside its head."""
  place, name, weights = _head(params)
  screened = functools.reduce(lambda tree, key: tree[key], place, made)
  return rounded.within(params, _at(place, {**screened, name: weights}))


def multiply(
  choice: str, x: Float[Array, "*batch I"], kernel: Matrix
) -> Float[Array, "*batch O"]:
  """Returns x W, exact where a number may be its row's largest.

  Args:
    choice: whose products, one of `products.PRODUCTS`.
    x: the rows.
    kernel: W as `weights`, or an embedding, W^T, as `table`; and what `screen` made.
  """
  by_rows = TABLE in kernel
  weights = kernel[TABLE if by_rows else WEIGHTS].astype(x.dtype)
  if not products.are_native(choice, x.size // x.shape[-1], str(x.dtype)):
    return _whole(choice, by_rows, x, weights)
  screened = (kernel[name] for name in ("codes", "scales", "bounds"))
  return _native_multiply(by_rows)(x, weights, *screened)


def _head(params: Mapping[str, Any]) -> tuple[Sequence[str], str, Array]:
  """Returns where a screen stands among parameters; the head's name there, and it."""
  decoder = params["decoder"]
  if "logits_dense" in decoder:
    return (
      ("decoder", "logits_dense", "kernel"),
      WEIGHTS,
      decoder["logits_dense"]["kernel"],
    )
  place, tree = ((), params) if "token_embedder" in params else (("decoder",), decoder)
  embedding = tree["token_embedder"]["embedding"]
  return (*place, "token_embedder", rounded.LOGITS), TABLE, embedding


def _at(place: Sequence[str], value: Any) -> dict[str, Any]:
  return flax.traverse_util.unflatten_dict({tuple(place): value})


@jax.jit
def _bounds(kernel: Float[Array, "I O"], made: Matrix) -> Float[Array, "2 O"]:
  """Returns what bounds a column's error: times |h|, and times what h is off by."""
  inputs, columns = kernel.shape
  codes = rounded.unpacked(made["codes"], columns)[:inputs].astype(jnp.float32)
  scales = made["scales"][0].astype(jnp.float32)
  # In steps, for squares of small weights would be 0.
  steps = jnp.where(scales > 0, scales, 1.0)
  whole = kernel.astype(jnp.float32) / steps
  norm = lambda x: jnp.sqrt(jnp.square(x).sum(axis=0)) * steps
  rounding = (inputs + 16) * 2.0**-23
  of_codes = norm(codes)
  of_h = norm(whole - codes) + rounding * (norm(whole) + of_codes)
  return jnp.stack([of_h, of_codes]) * (1 + rounding) + 1e-30


def _whole(choice, by_rows, x, weights):
  if by_rows:
    return products.multiply_by_rows(choice, x, weights)
  return products.multiply(choice, x, weights)[0]


@functools.cache
def _native_multiply(by_rows: bool) -> Callable[..., Array]:
  def kernel(x, weights, *screened):
    columns = weights.shape[0 if by_rows else 1]
    shape = jax.ShapeDtypeStruct((*x.shape[:-1], columns), x.dtype)
    call = jax.ffi.ffi_call("specdec_certified", shape, vmap_method="sequential")
    return call(x, weights, *screened, by_rows=by_rows)

  otherwise = lambda x, weights, *_: _whole("xla", by_rows, x, weights)
  return platforms.choose_kernel_on_cpu(kernel, otherwise)
