"""Decoding on several devices: shards of the inputs are decoded independently.

Shapes: B inputs, R outputs of all inputs, E input length.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any

import jax
from flax.linen.partitioning import axis_rules, get_axis_rules
from jax.sharding import PartitionSpec as P
from jaxtyping import Array, Bool, Int, Key

from specdec_t5x.decoding.decoder import Decoder
from specdec_t5x.decoding.state import Decoded

_AXIS = "data"


def decode(
  decoder: Decoder,
  params: Mapping[str, Any],
  inputs: Int[Array, "B E"],
  keys: Key[Array, "R"],
  *,
  is_wanted: Bool[Array, "B"] | None,
  policy_state: Any,
  **settings: Any,
) -> Decoded:
  """Decodes with `slots` rows at once over all devices; see `Decoder.decode`.

  If rows take turns, each shard of the mesh's 'data' axis has a queue of its own, and
  shards wait for one another only at the end. Within a shard the rules that divide
  parameters over the 'model' axis stay in force.

  Raises:
    ValueError: if the rows can't be divided equally among the devices, or if the
      devices that rows lie on are unknown.
  """

  def decode_part(decoder, inputs, keys, is_wanted, policy_state):
    return decoder.decode(
      params,
      inputs,
      keys,
      is_wanted=is_wanted,
      policy_state=policy_state,
      **settings,
    )

  shards = 1
  if 0 < decoder.slots < keys.shape[0]:
    mesh = jax.sharding.get_abstract_mesh()
    # The partitioner of upstream T5X has axis rules, but enters its mesh in a way that
    # JAX no longer shows.
    if mesh.empty and jax.device_count() > 1 and get_axis_rules():
      raise ValueError(
        f"BATCH_SIZE on several devices ({jax.device_count()}) needs a partitioner "
        "that enters the mesh with jax.set_mesh, such as t5x_runtime's: otherwise a "
        "row would take the inputs of another device. Set READ_AHEAD to 0."
      )
    shards = 1 if mesh.empty else mesh.shape.get(_AXIS, 1)
  if shards == 1:
    return decode_part(decoder, inputs, keys, is_wanted, policy_state)
  if decoder.slots % shards:
    raise ValueError(
      f"BATCH_SIZE must be divisible by the mesh's {_AXIS!r} axis of {shards} devices, "
      f"got {decoder.slots}: every device decodes an equal number of rows. Change "
      "BATCH_SIZE or PjitPartitioner.num_partitions."
    )
  # Within a shard the rows are not divided over any axis.
  rules = [(name, None if axis == _AXIS else axis) for name, axis in get_axis_rules()]
  part = dataclasses.replace(decoder, slots=decoder.slots // shards)

  def decode_shard(*arrays):
    with axis_rules(rules):
      return decode_part(part, *arrays)

  return jax.shard_map(
    decode_shard,
    mesh=mesh,
    in_specs=P(_AXIS),
    out_specs=P(_AXIS),
    axis_names={_AXIS},
    check_vma=False,
  )(inputs, keys, is_wanted, policy_state)
