"""Memory and collectives of a run, from compiling without devices or weights."""

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
  """Memory and collectives of the program of a batch.

  Attributes:
    mesh: the number of devices along 'data' and 'model'.
    params: bytes of the networks' parameters on each device.
    temporary: bytes of caches, activations and other temporaries on each device.
    collectives: `analysis.collectives.count_collectives` of the program; empty on one
      device.
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
  """Compiles `predict_batch_with_aux` from shapes and returns the program's needs.

  Args:
    model: a model of this project.
    dataset_cfg: the lengths and the batch size of the program.
    partitioner: the layout of parameters and batches on the mesh.
    param_dtype: dtype of the floating-point parameters; None keeps float32.
    devices: devices to compile for, such as those of a described topology, as many as
      the partitioner has; None means the partitioner's devices.
  """
  mesh = partitioner.mesh
  if devices is not None:
    mesh = Mesh(np.reshape(devices, mesh.devices.shape), mesh.axis_names)
  converter = model.FEATURE_CONVERTER_CLS(pack=False)
  lengths = converter.get_model_feature_lengths(dataset_cfg.task_feature_lengths)
  params = _params(model, dataset_cfg, partitioner, param_dtype, mesh)
  batch = {
    name: _abstract_array(
      (dataset_cfg.batch_size, length), jnp.int32, mesh, PartitionSpec("data")
    )
    for name, length in lengths.items()
  }
  key = _abstract_array((2,), jnp.uint32, mesh, None)
  program = jax.jit(model.predict_batch_with_aux)
  with jax.set_mesh(mesh), flax_partitioning.axis_rules(partitioner.logical_axis_rules):
    compiled = program.lower(params, batch, key).compile()
  is_one_device = mesh.devices.size == 1
  return Needs(
    mesh=dict(mesh.shape),
    params=sum(map(_bytes_per_device, jax.tree.leaves(params))),
    temporary=compiled.memory_analysis().temp_size_in_bytes,
    collectives={} if is_one_device else count_collectives(compiled.as_text()),
  )


def _abstract_array(shape, dtype, mesh, spec) -> jax.ShapeDtypeStruct:
  """Returns an array without values, sharded by `spec`; None replicates the array."""
  sharding = NamedSharding(mesh, spec or PartitionSpec())
  return jax.ShapeDtypeStruct(shape, dtype, sharding=sharding)


def _params(model, dataset_cfg, partitioner, dtype, mesh) -> Any:
  variables = abstract_variables(model, dataset_cfg.task_feature_lengths)

  def abstract_parameter(parameter, spec):
    is_float = jnp.issubdtype(parameter.dtype, jnp.floating)
    param_dtype = jnp.dtype(dtype) if dtype and is_float else parameter.dtype
    return _abstract_array(parameter.shape, param_dtype, mesh, spec)

  axes = mesh_axes(variables, partitioner)
  params = flax.core.freeze(variables["params"])
  return jax.tree.map(abstract_parameter, params, axes)


def _bytes_per_device(array: jax.ShapeDtypeStruct) -> int:
  shape = array.sharding.shard_shape(array.shape)
  return int(np.prod(shape)) * array.dtype.itemsize
