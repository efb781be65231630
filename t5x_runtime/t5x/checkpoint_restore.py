"""Restores a train state from a checkpoint in T5X's or Orbax's format."""

import functools
from collections.abc import Mapping
from typing import Any

import flax.core
import jax
from etils import epath
from flax import traverse_util
from jax.sharding import NamedSharding, PartitionSpec

from t5x import checkpoint_arrays, orbax_format
from t5x.checkpoint_paths import is_t5x_format


def restore(
  directory: epath.Path, train_state, partitioner, restore_dtype, fallback_state=None
):
  """Returns a train state with a checkpoint's parameters and step.

  Args:
    directory: directory of the checkpoint.
    train_state: names, shapes and logical axes of the parameters.
    partitioner: the layout of parameters on the devices.
    restore_dtype: dtype of the parameters; None keeps the stored dtype.
    fallback_state: values for parameters missing in the checkpoint, {'target': ...}.

  Raises:
    ValueError: if a parameter is missing, has another shape or is damaged.
  """
  if is_t5x_format(directory):
    stored = checkpoint_arrays.read_index(directory)
    read_arrays = checkpoint_arrays.read_arrays
  else:
    stored = orbax_format.read_index(directory)
    read_arrays = functools.partial(orbax_format.read_arrays, directory)
  expected = flatten(train_state.state_dict())
  fallback = flatten(fallback_state or {})
  _check_complete(directory, expected, stored, fallback)
  axes = {}
  if train_state.params_axes is not None:
    axes = flatten({"target": partitioner.get_mesh_axes(train_state).params})
  shardings = {
    name: NamedSharding(partitioner.mesh, axes.get(name) or PartitionSpec())
    for name in expected
  }
  dtypes = {name: restore_dtype for name in expected if name.startswith("target/")}
  entries = {name: stored[name] for name in expected if name in stored}
  state = read_arrays(entries, shardings, dtypes)
  for name in expected.keys() - entries.keys():
    state[name] = jax.device_put(fallback[name], shardings[name])
  return train_state.restore_state(traverse_util.unflatten_dict(state, sep="/"))


def _check_complete(directory, expected, stored, fallback) -> None:
  """Raises a ValueError if a parameter is missing or has another shape."""
  for name, leaf in expected.items():
    if name in stored and tuple(stored[name].shape) != tuple(leaf.shape):
      raise ValueError(
        f"Checkpoint {directory}: parameter {name} has shape "
        f"{tuple(stored[name].shape)}, but the model expects {tuple(leaf.shape)}. The "
        "model's configuration (vocab_size, emb_dim, num_heads, head_dim, mlp_dim) "
        "must match the checkpoint. Correct the configuration."
      )
  if missing := sorted(expected.keys() - stored.keys() - fallback.keys()):
    raise ValueError(
      f"Checkpoint {directory}: parameter {missing[0]} is missing ({len(missing)} of "
      f"the model's {len(expected)} parameters are missing: {missing[:5]}). The "
      f"checkpoint holds {len(stored)} arrays. The model's configuration (layers, "
      "mlp_activations, logits_via_embedding) must match the checkpoint. Correct the "
      "configuration, or set RestoreCheckpointConfig.fallback_to_scratch."
    )


def flatten(tree: Mapping[str, Any]) -> dict[str, Any]:
  """Returns the leaves of nested dicts by path, as in target/decoder/..."""
  return traverse_util.flatten_dict(flax.core.unfreeze(tree), sep="/")
