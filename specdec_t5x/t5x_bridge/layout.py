"""How a run's networks and batches lie on the devices, checked before model work."""

import flax
import jax
import numpy as np
from t5x.train_state import InferenceState

from specdec_t5x.checkpoints.checkpoint import flat_shapes


def check_layout(variables, partitioner, batch_size: int) -> None:
  """Raises a ValueError where the mesh does not divide the batch or a parameter.

  Args:
    variables: shapes of a model's parameters, and their logical axes.
    partitioner: maps logical axes to the mesh.
    batch_size: examples a batch, over all devices.
  """
  mesh = dict(partitioner.mesh.shape)
  if batch_size % mesh["data"]:
    raise ValueError(
      f"BATCH_SIZE={batch_size} is no multiple of the mesh's 'data' axis of "
      f"{mesh['data']} devices. Change it, or PjitPartitioner.num_partitions: their "
      f"product is the {jax.device_count()} devices."
    )
  axes = flax.core.unfreeze(mesh_axes(variables, partitioner))
  flat = flax.traverse_util.flatten_dict(axes, sep="/")
  for name, shape in flat_shapes(variables["params"]).items():
    for size, divided_by in zip(shape, flat[name] or (), strict=False):
      devices = _count(mesh, divided_by)
      if size % devices:
        raise ValueError(_indivisible(name, shape, size, devices))


def mesh_axes(variables, partitioner):
  """Returns each parameter's PartitionSpec on the partitioner's mesh."""
  state = jax.eval_shape(lambda: InferenceState.create(variables))
  state = state.replace(params_axes=variables["params_axes"])
  return partitioner.get_mesh_axes(state).params


def _count(mesh, axis) -> int:
  axes = (axis,) if isinstance(axis, str) else axis or ()
  return int(np.prod([mesh[name] for name in axes]))


def _indivisible(name, shape, size, devices) -> str:
  macro = f"{name.partition('/')[0].upper()}_SHARDING"
  return (
    f"{name} {shape} can't be divided over {devices} devices: {size} is no multiple. "
    f"Set {macro}='no_heads' (all but heads is divided) or 'replicated' (each device "
    "holds the whole network), or another PjitPartitioner.num_partitions."
  )
