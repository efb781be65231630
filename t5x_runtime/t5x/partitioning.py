"""Placing parameters and batches on a ('data', 'model') mesh of devices."""

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
  """Which part of a global batch a process feeds.

  Attributes:
    batch_size: of the whole batch.
    shard_id: which shard of the data this process reads.
    num_shards: how many shards there are.
    is_first_host_in_replica_set: whether no lower process reads the same shard.
  """

  batch_size: int
  shard_id: int
  num_shards: int
  is_first_host_in_replica_set: bool


def standard_logical_axis_rules(
  activation_partitioning_dims: int = 1,
  parameter_partitioning_dims: int = 1,
  additional_rules: LogicalAxisRules | None = None,
) -> list[tuple[str, str | None]]:
  """Rules from the canonical logical axes to the mesh, highest priority first.

  Args:
    activation_partitioning_dims: 2 also shards activations' embed over 'model'.
    parameter_partitioning_dims: 2 also shards parameters' embed over 'data'.
    additional_rules: appended.
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
  # After the rules above: embed takes what mesh axis they leave free in an array.
  if activation_partitioning_dims == 2:
    rules.append(("embed", "model"))
  if parameter_partitioning_dims == 2:
    rules.append(("embed", "data"))
  if dims == (1, 1):
    rules.append(("embed", None))
  rules.extend((name, None) for name in _UNSHARDED)
  return [*rules, *(additional_rules or ())]


def default_mesh(
  num_partitions: int | None,
  model_parallel_submesh: Sequence[int] | None = None,
  backend: str | None = None,
  ici_mesh_shape: Sequence[int] | None = None,
  dcn_mesh_shape: Sequence[int] | None = None,
) -> Mesh:
  """The ('data', 'model') mesh over all devices; see `PjitPartitioner`."""
  devices = jax.devices(backend)
  if ici_mesh_shape is not None:
    ici = tuple(ici_mesh_shape)
    if dcn_mesh_shape is not None:
      grid = mesh_utils.create_hybrid_device_mesh(ici, tuple(dcn_mesh_shape), devices)
    else:
      grid = mesh_utils.create_device_mesh(ici, devices)
    return Mesh(grid, _MESH_AXES[: grid.ndim])
  model = num_partitions
  if model_parallel_submesh is not None:
    model = int(np.prod(model_parallel_submesh))
  if not model or model < 1 or len(devices) % model:
    raise ValueError(
      f"Expected num_partitions (or the size of model_parallel_submesh) to divide "
      f"the {len(devices)} devices, got {model}."
    )
  shape = (len(devices) // model, model)
  return Mesh(mesh_utils.create_device_mesh(shape, devices), _MESH_AXES)


class BasePartitioner:
  """The part of the partitioner that does not depend on how a function is compiled."""

  def __init__(
    self,
    num_partitions: int | None = None,
    model_parallel_submesh: Sequence[int] | None = None,
    params_on_devices: bool = True,
    backend: str | None = None,
    ici_mesh_shape: Sequence[int] | None = None,
    dcn_mesh_shape: Sequence[int] | None = None,
  ):
    if not (num_partitions or model_parallel_submesh or ici_mesh_shape):
      raise ValueError(
        "Expected num_partitions, model_parallel_submesh or ici_mesh_shape, got none. "
        "Set PjitPartitioner.num_partitions = 1 for data parallelism alone."
      )
    self._num_partitions = num_partitions
    self._model_parallel_submesh = model_parallel_submesh
    self.params_on_devices = params_on_devices
    self._backend = backend
    self._ici_mesh_shape = ici_mesh_shape
    self._dcn_mesh_shape = dcn_mesh_shape

  @functools.cached_property
  def mesh(self) -> Mesh:
    return default_mesh(
      self._num_partitions,
      self._model_parallel_submesh,
      self._backend,
      self._ici_mesh_shape,
      self._dcn_mesh_shape,
    )

  @property
  def data_partition_spec(self) -> PartitionSpec:
    return PartitionSpec("data")

  @property
  def data_mesh_size(self) -> int:
    return self.mesh.shape["data"]

  @property
  def data_shards(self) -> int:
    return len(self._shard_owners())

  @property
  def data_shard_id(self) -> int:
    return self.get_data_layout().shard_id

  def get_data_layout(
    self, batch_size: int | None = None, host_index: int | None = None
  ) -> DataLayout:
    """Which rows of a batch the process `host_index` (default: this one) feeds."""
    batch_size = self.data_mesh_size if batch_size is None else batch_size
    if batch_size % self.data_mesh_size:
      raise ValueError(
        f"Expected a batch size divisible by the 'data' axis of the mesh "
        f"({self.data_mesh_size}), got {batch_size}. Change DatasetConfig.batch_size "
        "or PjitPartitioner.num_partitions."
      )
    host = jax.process_index() if host_index is None else host_index
    owners = self._shard_owners()
    for shard_id, processes in enumerate(owners):
      if host in processes:
        return DataLayout(batch_size, shard_id, len(owners), host == min(processes))
    raise ValueError(
      f"Expected a process that has devices in the mesh, got process {host}; the mesh "
      f"holds {[sorted(p) for p in owners]}."
    )

  def _shard_owners(self) -> list[frozenset[int]]:
    """Processes per data shard, in the order of the rows that they hold.

    Processes whose devices cover the same 'data' rows read the same data.
    """
    grid = self.mesh.devices.reshape(self.data_mesh_size, -1)
    rows: dict[int, list[int]] = {}
    for row, devices in enumerate(grid):
      for process in {d.process_index for d in devices}:
        rows.setdefault(process, []).append(row)
    groups: dict[tuple[int, ...], set[int]] = {}
    for process, held in rows.items():
      groups.setdefault(tuple(held), set()).add(process)
    covered = [row for held in groups for row in held]
    if len(covered) != len(set(covered)):
      raise ValueError(
        "Expected processes to hold equal or disjoint parts of the 'data' axis, got "
        f"{sorted(groups)}. Choose num_partitions so that it divides, or is a multiple "
        "of, the devices of one process."
      )
    return [frozenset(groups[held]) for held in sorted(groups)]

  def get_logical_axes(self, train_state: TrainState) -> TrainState:
    """The state with PartitionSpecs of logical axis names as leaves."""
    return train_state.as_logical_axes()

  def get_mesh_axes(self, train_state: TrainState) -> TrainState:
    raise NotImplementedError("Use PjitPartitioner, which knows the axis rules.")

  def move_params_to_devices(
    self, train_state: TrainState, train_state_axes: TrainState
  ) -> TrainState:
    """Places every leaf with the sharding that its mesh axes say."""
    return jax.tree.map(
      lambda leaf, spec: jax.device_put(leaf, NamedSharding(self.mesh, spec)),
      train_state.params,
      train_state_axes.params,
    )


class PartitionedFn:
  """A jitted function that runs inside the mesh and the logical axis rules."""

  def __init__(self, jitted, mesh: Mesh, rules: LogicalAxisRules):
    self._jitted = jitted
    self._mesh = mesh
    self._rules = rules

  def __call__(self, *args, **kwargs):
    with jax.set_mesh(self._mesh), flax_partitioning.axis_rules(self._rules):
      return self._jitted(*args, **kwargs)

  def lower(self, *args, **kwargs):
    with jax.set_mesh(self._mesh), flax_partitioning.axis_rules(self._rules):
      return self._jitted.lower(*args, **kwargs)


class PjitPartitioner(BasePartitioner):
  """Shards over 'data' and 'model' by rules on logical axis names.

  Args:
    num_partitions: size of the 'model' axis; the other devices form 'data'.
    model_parallel_submesh: its size as a product, instead of num_partitions.
    params_on_devices: kept for callers; parameters always live on the devices here.
    backend: JAX backend; the default one where None.
    ici_mesh_shape: (data, model) within a slice, instead of num_partitions.
    dcn_mesh_shape: (data, model) across slices.
    logical_axis_rules: `standard_logical_axis_rules()` where None.
  """

  def __init__(
    self,
    num_partitions: int | None = None,
    model_parallel_submesh: Sequence[int] | None = None,
    params_on_devices: bool = True,
    backend: str | None = None,
    ici_mesh_shape: Sequence[int] | None = None,
    dcn_mesh_shape: Sequence[int] | None = None,
    logical_axis_rules: LogicalAxisRules | None = None,
  ):
    super().__init__(
      num_partitions,
      model_parallel_submesh,
      params_on_devices,
      backend,
      ici_mesh_shape,
      dcn_mesh_shape,
    )
    if logical_axis_rules is None:
      logical_axis_rules = standard_logical_axis_rules()
    self._rules = tuple((k, v) for k, v in logical_axis_rules)
    unknown = {v for _, v in self._rules if v not in (*_MESH_AXES, None)}
    if unknown:
      raise ValueError(
        f"Expected logical axes mapped to 'data', 'model' or None, got {unknown}."
      )

  @property
  def logical_axis_rules(self) -> LogicalAxisRules:
    return self._rules

  def get_mesh_axes(self, train_state: TrainState) -> TrainState:
    """The state with PartitionSpecs of mesh axes as leaves; None means replicated."""
    logical = self.get_logical_axes(train_state)
    flat = traverse_util.flatten_dict(logical.params, keep_empty_nodes=True)
    specs = {path: self._to_mesh(spec, path) for path, spec in flat.items()}
    return train_state_lib.InferenceState(
      step=None,
      params=flax.core.freeze(traverse_util.unflatten_dict(specs)),
      flax_mutables=logical.flax_mutables,
    )

  def _to_mesh(self, spec, path) -> PartitionSpec:
    if not isinstance(spec, PartitionSpec):
      return spec
    names = {name for name, _ in self._rules}
    unknown = [a for a in spec if a is not None and a not in names]
    if unknown:
      raise ValueError(
        f"Parameter {'/'.join(path)} has logical axes {tuple(spec)}; the rules name no "
        f"{unknown}. Add them to standard_logical_axis_rules.additional_rules."
      )
    return flax_partitioning.logical_to_mesh_axes(tuple(spec), self._rules)

  def partition(
    self,
    fn: Callable,
    in_axis_resources,
    out_axis_resources,
    static_argnums: int | Sequence[int] = (),
    donate_argnums: int | Sequence[int] = (),
  ) -> PartitionedFn:
    """`fn` jitted with arguments and results sharded by trees of PartitionSpecs.

    None (also as a prefix of a tree) means replicated.
    """
    jitted = jax.jit(
      fn,
      in_shardings=self._shardings(in_axis_resources),
      out_shardings=self._shardings(out_axis_resources),
      static_argnums=static_argnums,
      donate_argnums=donate_argnums,
    )
    return PartitionedFn(jitted, self.mesh, self._rules)

  def compile(self, partitioned_fn: PartitionedFn, *args):
    """Compiles ahead of time for these arguments."""
    return partitioned_fn.lower(*args).compile()

  def _shardings(self, axis_resources):
    is_leaf = lambda x: x is None or isinstance(x, PartitionSpec)
    return jax.tree.map(
      lambda spec: NamedSharding(self.mesh, spec or PartitionSpec()),
      axis_resources,
      is_leaf=is_leaf,
    )
