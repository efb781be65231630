"""Places parameters and batches on a ('data', 'model') mesh of devices."""

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any

import flax.core
import jax
import numpy as np
from flax import traverse_util
from flax.linen import partitioning as flax_partitioning
from jax.experimental import mesh_utils
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from t5x import train_state as train_state_lib

TrainState = Any
LogicalAxisRules = Sequence[tuple[str, str | None]]

_MESH_AXES = ("data", "model")
_UNSHARDED = (
  "relpos_buckets",
  "abspos_buckets",
  "length",
  "layers",
  "stack",
  "mlp_activations",
)


@dataclasses.dataclass
class DataLayout:
  """The part of a global batch that a process feeds."""

  batch_size: int  # Number of rows of the global batch.
  shard_id: int  # Of this process's shard of the data.
  num_shards: int
  is_first_host_in_replica_set: bool  # Whether no earlier process has the shard.


def standard_logical_axis_rules(
  activation_partitioning_dims: int = 1,
  parameter_partitioning_dims: int = 1,
  additional_rules: LogicalAxisRules | None = None,
) -> list[tuple[str, str | None]]:
  """Returns rules from canonical logical axes to the mesh, by decreasing priority.

  Args:
    activation_partitioning_dims: 2 also shards activations' embed over 'model'.
    parameter_partitioning_dims: 2 also shards parameters' embed over 'data'.
    additional_rules: rules to append.
  """
  dims = (activation_partitioning_dims, parameter_partitioning_dims)
  if any(d not in (1, 2) for d in dims):
    raise ValueError(
      "Expected activation_partitioning_dims and parameter_partitioning_dims to be "
      f"1 or 2, got {dims[0]} and {dims[1]}. Pass logical_axis_rules for other layouts."
    )
  rules: list[tuple[str, str | None]] = [
    ("batch", "data"),
    ("vocab", "model"),
    ("mlp", "model"),
    ("heads", "model"),
    ("kv", None),
    ("joined_kv", "model"),
  ]
  # The rules of embed come last: embed takes a mesh axis that is still free.
  if activation_partitioning_dims == 2:
    rules.append(("embed", "model"))
  if parameter_partitioning_dims == 2:
    rules.append(("embed", "data"))
  if dims == (1, 1):
    rules.append(("embed", None))
  rules.extend((name, None) for name in _UNSHARDED)
  return [*rules, *(additional_rules or ())]


class PartitionedFn:
  """A jitted function that runs in the context of a mesh and logical axis rules."""

  def __init__(self, jitted, mesh: Mesh, rules: LogicalAxisRules):
    self._jitted = jitted
    self._mesh = mesh
    self._rules = rules

  def __call__(self, *args):
    with jax.set_mesh(self._mesh), flax_partitioning.axis_rules(self._rules):
      return self._jitted(*args)

  def lower(self, *args):
    with jax.set_mesh(self._mesh), flax_partitioning.axis_rules(self._rules):
      return self._jitted.lower(*args)


@dataclasses.dataclass(eq=False)
class PjitPartitioner:
  """Shards over 'data' and 'model' by rules on logical axis names."""

  num_partitions: int | None = None  # Size of 'model'; other devices form 'data'.
  # Factors of the size of 'model', instead of num_partitions.
  model_parallel_submesh: Sequence[int] | None = None
  # None means `standard_logical_axis_rules()`.
  logical_axis_rules: LogicalAxisRules | None = None

  def __post_init__(self):
    if not (self.num_partitions or self.model_parallel_submesh):
      raise ValueError(
        "PjitPartitioner needs num_partitions or model_parallel_submesh, got none. Set "
        "PjitPartitioner.num_partitions = 1 for data parallelism alone."
      )
    if self.logical_axis_rules is None:
      self.logical_axis_rules = standard_logical_axis_rules()
    self.logical_axis_rules = tuple((k, v) for k, v in self.logical_axis_rules)
    unknown = {v for _, v in self.logical_axis_rules} - {*_MESH_AXES, None}
    if unknown:
      raise ValueError(
        f"Expected logical axes mapped to 'data', 'model' or None, got {unknown}."
      )

  @functools.cached_property
  def mesh(self) -> Mesh:
    """The ('data', 'model') mesh over all devices."""
    devices = jax.devices()
    model = self.num_partitions
    if self.model_parallel_submesh is not None:
      model = int(np.prod(self.model_parallel_submesh))
    if model < 1 or len(devices) % model:
      raise ValueError(
        f"Expected num_partitions (or the size of model_parallel_submesh) to divide "
        f"the {len(devices)} devices, got {model}."
      )
    shape = (len(devices) // model, model)
    return Mesh(mesh_utils.create_device_mesh(shape, devices), _MESH_AXES)

  @property
  def data_partition_spec(self) -> PartitionSpec:
    return PartitionSpec("data")

  def get_data_layout(self, batch_size: int | None = None) -> DataLayout:
    """Returns the part of a batch that this process feeds.

    Processes with devices on the same 'data' rows feed the same rows.
    """
    size = self.mesh.shape["data"]
    batch_size = size if batch_size is None else batch_size
    if batch_size % size:
      raise ValueError(
        f"Expected a batch size divisible by the 'data' axis of the mesh ({size}), got "
        f"{batch_size}. Change DatasetConfig.batch_size or "
        "PjitPartitioner.num_partitions."
      )
    rows: dict[int, list[int]] = {}
    for row, devices in enumerate(self.mesh.devices.reshape(size, -1)):
      for process in {device.process_index for device in devices}:
        rows.setdefault(process, []).append(row)
    parts = sorted({tuple(process_rows) for process_rows in rows.values()})
    if sum(map(len, parts)) != size:
      raise ValueError(
        "Expected processes to hold equal or disjoint parts of the 'data' axis, got "
        f"{parts}. num_partitions must divide the number of devices of a process, or "
        "be a multiple of the number."
      )
    this_process = jax.process_index()
    part = rows[this_process]
    first_process = min(process for process in rows if rows[process] == part)
    return DataLayout(
      batch_size=batch_size,
      shard_id=parts.index(tuple(part)),
      num_shards=len(parts),
      is_first_host_in_replica_set=this_process == first_process,
    )

  def get_logical_axes(self, train_state: TrainState) -> TrainState:
    """Returns the state with PartitionSpecs of logical axis names as leaves."""
    return train_state.as_logical_axes()

  def get_mesh_axes(self, train_state: TrainState) -> TrainState:
    """Returns the state with PartitionSpecs of mesh axes, or None for replication."""
    logical = self.get_logical_axes(train_state)
    specs = traverse_util.flatten_dict(logical.params, keep_empty_nodes=True)
    names = {name for name, _ in self.logical_axis_rules}
    for path, spec in specs.items():
      if not isinstance(spec, PartitionSpec):
        continue
      if unknown := [axis for axis in spec if axis is not None and axis not in names]:
        raise ValueError(
          f"Parameter {'/'.join(path)} has logical axes {tuple(spec)}, but the rules "
          f"lack {unknown}. Add the axes to "
          "standard_logical_axis_rules.additional_rules."
        )
      specs[path] = flax_partitioning.logical_to_mesh_axes(
        tuple(spec), self.logical_axis_rules
      )
    return train_state_lib.InferenceState(
      step=None, params=flax.core.freeze(traverse_util.unflatten_dict(specs))
    )

  def partition(
    self,
    fn: Callable,
    in_axis_resources,
    out_axis_resources,
    static_argnums: int | Sequence[int] = (),
    donate_argnums: int | Sequence[int] = (),
  ) -> PartitionedFn:
    """Jits `fn` with arguments and results sharded by trees of PartitionSpecs.

    None (also as a prefix of a tree) means replication.
    """
    jitted = jax.jit(
      fn,
      in_shardings=self._shardings(in_axis_resources),
      out_shardings=self._shardings(out_axis_resources),
      static_argnums=static_argnums,
      donate_argnums=donate_argnums,
    )
    return PartitionedFn(jitted, self.mesh, self.logical_axis_rules)

  def compile(self, partitioned_fn: PartitionedFn, *args):
    """Compiles a function ahead of time for the given arguments."""
    return partitioned_fn.lower(*args).compile()

  def _shardings(self, axis_resources):
    def is_leaf(x):
      return x is None or isinstance(x, PartitionSpec)

    return jax.tree.map(
      lambda spec: NamedSharding(self.mesh, spec or PartitionSpec()),
      axis_resources,
      is_leaf=is_leaf,
    )
