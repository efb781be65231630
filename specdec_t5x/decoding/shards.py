"""Rows on several devices: each shard of the mesh's 'data' axis decodes by itself."""

from collections.abc import Callable

import jax
from flax.linen.partitioning import axis_rules, get_axis_rules
from jax.sharding import AbstractMesh
from jax.sharding import PartitionSpec as P
from jaxtyping import Array, Int, Key

from specdec_t5x.decoding.state import Decoded

_AXIS = "data"

# From inputs, keys of their rows and how many of these decode at once to the outputs.
DecodeFn = Callable[[Int[Array, "I E"], Key[Array, "R"], int], Decoded]


def by_shard(
  decode: DecodeFn, inputs: Int[Array, "I E"], keys: Key[Array, "R"], slots: int
) -> Decoded:
  """Decodes where rows take turns, so that no shard takes the inputs of another.

  Shards wait for one another at the end alone. What divides parameters over 'model'
  holds within a shard.

  Args:
    decode: what each shard does with its part.
    inputs: all.
    keys: of all rows.
    slots: rows at once, over all shards.

  Raises:
    ValueError: where the shards can't have as many rows each, or which they are is not
      to be seen.
  """
  mesh = jax.sharding.get_abstract_mesh()
  if mesh.empty:
    _check_whole()
    return decode(inputs, keys, slots)
  shards = mesh.shape.get(_AXIS, 1)
  if shards == 1:
    return decode(inputs, keys, slots)
  if slots % shards:
    raise ValueError(
      f"SLOTS={slots} is no multiple of the mesh's {_AXIS!r} axis of {shards} devices: "
      "each decodes as many rows. Change it, or PjitPartitioner.num_partitions."
    )
  return _mapped(decode, mesh, slots // shards)(inputs, keys)


def _mapped(decode, mesh: AbstractMesh, slots: int):
  # Within a shard rows lie on no axis any more.
  rules = [(name, None if axis == _AXIS else axis) for name, axis in get_axis_rules()]

  def decode_part(inputs, keys):
    with axis_rules(rules):
      return decode(inputs, keys, slots)

  return jax.shard_map(
    decode_part,
    mesh=mesh,
    in_specs=P(_AXIS),
    out_specs=P(_AXIS),
    axis_names={_AXIS},
    check_vma=False,
  )


def _check_whole() -> None:
  """Raises a ValueError where rows may be divided over a mesh that is not to be seen.

  A partitioner has rules; upstream T5X's enters its mesh as JAX no longer shows it.
  """
  if jax.device_count() > 1 and get_axis_rules():
    raise ValueError(
      f"SLOTS on several devices, here {jax.device_count()}, needs a partitioner that "
      "enters its mesh by jax.set_mesh, as t5x_runtime's does: rows of one device "
      "would take inputs of another. Leave SLOTS at 0."
    )
