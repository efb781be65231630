"""The state of a decoding step, and functions between shapes of beams.

Functions convert arrays and caches between [batch, ...] and [batch * beam, ...].
"""

from collections.abc import Callable, Mapping
from typing import Any

import flax
import jax
import jax.numpy as jnp
import numpy as np

PyTree = Any

_INDEX_LEAF = "cache_index"
# The log probability of impossible events; finite, so that float32 sums stay valid.
NEG_INF_VALUE = -1.0e7
NEG_INF = np.array(NEG_INF_VALUE)
# Lower temperatures mean greedy decoding.
MIN_TEMPERATURE = np.array(1e-4)


@flax.struct.dataclass
class DecodingState:
  """The model's input at one decoding step.

  Attributes:
    cur_index: index of the current token, per row.
    sequences: [rows, length] tokens so far.
    cur_token: [rows, 1] the current token.
    cache: the model's cache.
  """

  cur_index: jax.Array
  sequences: jax.Array
  cur_token: jax.Array
  cache: Mapping[str, Any]


TokensToLogits = Callable[[DecodingState], tuple[jax.Array, Mapping[str, Any]]]


def cache_map(
  fn: Callable[..., jax.Array], cache: Mapping, apply_to_index: bool = False
) -> Mapping:
  """Maps `fn` over a cache, except for leaves with the name `cache_index`.

  Args:
    fn: function of a leaf.
    cache: nested mapping from names to arrays.
    apply_to_index: whether `fn` also maps the index leaves.
  """

  def visit(path, leaf):
    name = getattr(path[-1], "key", None)
    skip = name == _INDEX_LEAF and not apply_to_index
    return leaf if skip else fn(leaf)

  return jax.tree_util.tree_map_with_path(visit, cache)


def add_beam_dim(x: jax.Array, beam_size: int, offset: int = 0) -> jax.Array:
  """Repeats each row: [..., batch, rest] -> [..., batch, beam, rest]."""
  return jnp.repeat(jnp.expand_dims(x, offset + 1), beam_size, axis=offset + 1)


def flatten_beam_dim(x: jax.Array, offset: int = 0) -> jax.Array:
  """Merges batch and beam: [..., batch, beam, rest] -> [..., batch * beam, rest]."""
  shape = x.shape
  if len(shape) < offset + 2:
    raise ValueError(
      f"flatten_beam_dim needs at least {offset + 2} dimensions (offset {offset}), "
      f"got shape {shape}. Add the beam dimension first (add_beam_dim)."
    )
  merged = shape[offset] * shape[offset + 1]
  return x.reshape((*shape[:offset], merged, *shape[offset + 2 :]))


def unflatten_beam_dim(
  x: jax.Array, batch_size: int, beam_size: int, offset: int = 0
) -> jax.Array:
  """Splits batch and beam: [..., batch * beam, rest] -> [..., batch, beam, rest]."""
  if x.shape[offset] != batch_size * beam_size:
    raise ValueError(
      f"Expected dimension {offset} to be batch_size * beam_size = "
      f"{batch_size} * {beam_size}, got shape {x.shape}."
    )
  return x.reshape((*x.shape[:offset], batch_size, beam_size, *x.shape[offset + 1 :]))


def flat_batch_beam_expand(x: jax.Array, beam_size: int, offset: int = 0) -> jax.Array:
  """Repeats rows adjacently: [..., batch, rest] -> [..., batch * beam, rest]."""
  return jnp.repeat(x, beam_size, axis=offset)


def gather_beams(nested: PyTree, beam_indices: jax.Array, offset: int = 0) -> PyTree:
  """Gathers beams of [batch, beam, ...] leaves by `beam_indices` [batch, new_beam]."""

  def pick(leaf):
    rows = jnp.arange(leaf.shape[offset])[:, None]
    return leaf[(*[slice(None)] * offset, rows, beam_indices)]

  return jax.tree.map(pick, nested)


def cache_gather_beams(
  nested: PyTree,
  beam_indices: jax.Array,
  batch_size: int,
  old_beam_size: int,
  new_beam_size: int,
  one_hot: bool = True,
  offset: int = 0,
) -> PyTree:
  """Gathers beams like `gather_beams`, in a cache with index leaves without a batch.

  Args:
    nested: cache with [batch, old_beam, ...] leaves.
    beam_indices: [batch, new_beam] indices into the old beams.
    batch_size: batch, checked against `beam_indices`.
    old_beam_size: number of beams in `nested`, unused.
    new_beam_size: new_beam, checked against `beam_indices`.
    one_hot: unused, accepted for compatibility.
    offset: number of dimensions before the batch (1 for scanned layers).
  """
  del old_beam_size, one_hot
  if beam_indices.shape != (batch_size, new_beam_size):
    raise ValueError(
      f"Expected beam_indices of shape {(batch_size, new_beam_size)}, got "
      f"{beam_indices.shape}."
    )
  return cache_map(lambda leaf: gather_beams(leaf, beam_indices, offset), nested)
