"""What a run needs of its devices, from compiling it without them or any weights."""

import dataclasses
from collections import Counter
from typing import Any

import flax.core
import jax
import jax.numpy as jnp
import numpy as np
from flax.linen import partitioning as flax_partitioning
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from t5x import utils

from specdec_t5x.analysis.collectives import count_collectives
from specdec_t5x.t5x_bridge.layout import mesh_axes
from specdec_t5x.t5x_bridge.preflight import abstract_variables


@dataclasses.dataclass(frozen=True)
class Needs:
  """What a batch's program needs; sizes in bytes on each device.

  Attributes:
    mesh: devices along 'data' and 'model'.
    params: the networks' parameters.
    temporary: caches, activations and whatever else lives while it runs.
    collectives: `analysis.collectives.count_collectives` of it; empty on one device.
  """

  mesh: dict[str, int]
  params: int
  temporary: int
  collectives: dict[str, Counter]


def compile_ahead(
  model,
  dataset_cfg: utils.DatasetConfig,
  partitioner,
  param_dtype: str | None,
  devices: np.ndarray | None = None,
) -> Needs:
  """Compiles `predict_batch_with_aux` for shapes alone and says what it needs.

  Args:
    model: one of this project's models.
    dataset_cfg: its lengths and batch size are the program's.
    partitioner: how parameters and batches lie on the mesh.
    param_dtype: of the floating-point parameters; None is float32.
    devices: to compile for, as of a described topology; the partitioner's where None.
      As many as the partitioner's.
  """
  mesh = partitioner.mesh
  if devices is not None:
    mesh = Mesh(np.reshape(devices, mesh.devices.shape), mesh.axis_names)
  place = lambda shape, dtype, spec: jax.ShapeDtypeStruct(
    shape, dtype, sharding=NamedSharding(mesh, spec or PartitionSpec())
  )
  params = _params(model, dataset_cfg, partitioner, param_dtype, place)
  rows = PartitionSpec("data")
  batch = {
    name: place((dataset_cfg.batch_size, length), jnp.int32, rows)
    for name, length in _feature_lengths(model, dataset_cfg).items()
  }
  key = place((2,), jnp.uint32, None)
  program = jax.jit(model.predict_batch_with_aux)
  with jax.set_mesh(mesh), flax_partitioning.axis_rules(partitioner.logical_axis_rules):
    compiled = program.lower(params, batch, key).compile()
  is_alone = mesh.devices.size == 1
  return Needs(
    mesh=dict(mesh.shape),
    params=sum(map(_bytes_a_device, jax.tree.leaves(params))),
    temporary=compiled.memory_analysis().temp_size_in_bytes,
    collectives={} if is_alone else count_collectives(compiled.as_text()),
  )


def _params(model, dataset_cfg, partitioner, dtype, place) -> Any:
  variables = abstract_variables(model, dataset_cfg.task_feature_lengths)

  def leaf(parameter, spec):
    is_float = jnp.issubdtype(parameter.dtype, jnp.floating)
    kept = jnp.dtype(dtype) if dtype and is_float else parameter.dtype
    return place(parameter.shape, kept, spec)

  axes = mesh_axes(variables, partitioner)
  return jax.tree.map(leaf, flax.core.freeze(variables["params"]), axes)


def _feature_lengths(model, dataset_cfg) -> dict[str, int]:
  converter = model.FEATURE_CONVERTER_CLS(pack=False)
  return converter.get_model_feature_lengths(dataset_cfg.task_feature_lengths)


def _bytes_a_device(array: jax.ShapeDtypeStruct) -> int:
  shape = array.sharding.shard_shape(array.shape)
  return int(np.prod(shape)) * array.dtype.itemsize
