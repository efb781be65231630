"""Checks of the layout of a run's networks and batches on the devices."""

import flax
import jax
import numpy as np
import t5x
from t5x.train_state import InferenceState

from specdec_t5x import console
from specdec_t5x.checkpoints.checks import flat_shapes
from specdec_t5x.core.knobs import is_whole


def rows_at_once(batch_size: int) -> int:
  """Returns the number of rows that decode at once, a checked BATCH_SIZE."""
  _check_count("BATCH_SIZE", batch_size)
  return batch_size


def inputs_a_call(batch_size: int, read_ahead: int, slots: int) -> int:
  """Returns the number of inputs per call, which refill slots after the ends of rows.

  Args:
    batch_size: BATCH_SIZE.
    read_ahead: READ_AHEAD, the number of batches per call.
    slots: SLOTS; 0 if slots are not refilled.
  """
  _check_count("BATCH_SIZE", batch_size)
  _check_count("READ_AHEAD", read_ahead)
  if not slots or read_ahead == 1:
    return batch_size
  if jax.device_count() > 1 and not hasattr(t5x, "PROVIDER"):
    console.say(
      "Upstream T5X's partitioner does not report the device of a row, so a finished "
      "row waits for the batch (READ_AHEAD=1)."
    )
    return batch_size
  return batch_size * read_ahead


def _check_count(name: str, count: int) -> None:
  if not is_whole(count, 1):
    raise ValueError(f"{name} must be a whole number of at least 1, got {count!r}.")


def check_layout(variables, partitioner, rows: int) -> None:
  """Raises a ValueError if the mesh does not divide the batch or a parameter.

  Args:
    variables: shapes and logical axes of a model's parameters.
    partitioner: maps logical axes to the mesh.
    rows: number of rows that decode at once, over all devices.
  """
  mesh = dict(partitioner.mesh.shape)
  if rows % mesh["data"]:
    raise ValueError(
      f"BATCH_SIZE must be divisible by the mesh's 'data' axis of {mesh['data']} "
      f"devices, got {rows}. Change BATCH_SIZE or PjitPartitioner.num_partitions "
      f"(num_partitions times the 'data' axis is {jax.device_count()}, the number of "
      "devices)."
    )
  state = jax.eval_shape(lambda: InferenceState.create(variables))
  state = state.replace(params_axes=variables["params_axes"])
  axes = flax.core.unfreeze(partitioner.get_mesh_axes(state).params)
  flat = flax.traverse_util.flatten_dict(axes, sep="/")
  for name, shape in flat_shapes(variables["params"]).items():
    for size, divided_by in zip(shape, flat[name] or (), strict=False):
      devices = _count(mesh, divided_by)
      if size % devices:
        macro = f"{name.partition('/')[0].upper()}_SHARDING"
        raise ValueError(
          f"{name} {shape} can't be divided over {devices} devices: {size} is not "
          f"divisible by {devices}. Set {macro}='no_heads' (heads are not divided) or "
          "'replicated' (every device holds the whole network), or change "
          "PjitPartitioner.num_partitions."
        )


def _count(mesh, axis) -> int:
  axes = (axis,) if isinstance(axis, str) else axis or ()
  return int(np.prod([mesh[name] for name in axes]))
