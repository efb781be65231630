"""Finds, saves and restores checkpoints in T5X's own format and in Orbax's format.

`Checkpointer` writes T5X's format and `OrbaxCheckpointManagerInterface` Orbax's format.
Both restore both formats. Arrays are read directly into the final sharding and dtype. A
checkpoint is a folder `checkpoint_<step>`.
"""

import dataclasses
import functools
import re
from collections.abc import Mapping
from typing import Any

import flax.core
import jax
import jax.numpy as jnp
import numpy as np
from etils import epath
from flax import traverse_util
from jax.sharding import NamedSharding, PartitionSpec

from t5x import checkpoint_arrays, orbax_format
from t5x.checkpoint_arrays import INDEX_FILE
from t5x.hosts import sync


def all_steps(checkpoints_dir: str) -> list[int]:
  """Returns the steps of a directory's complete checkpoints, in both formats."""
  directory = epath.Path(checkpoints_dir)
  if not directory.is_dir():
    return []
  steps = []
  for child in directory.iterdir():
    match = re.fullmatch(r"checkpoint_(\d+)", child.name)
    if match and (is_t5x_format(child) or orbax_format.is_orbax_format(child)):
      steps.append(int(match.group(1)))
  return sorted(steps)


def is_t5x_format(path: epath.PathLike) -> bool:
  """Returns whether a directory is a checkpoint in T5X's own format."""
  return (epath.Path(path) / INDEX_FILE).is_file()


def step_dir(checkpoints_dir: epath.PathLike, step: int) -> epath.Path:
  """Returns the path of a step's checkpoint."""
  return epath.Path(checkpoints_dir) / f"checkpoint_{step}"


def resolve_checkpoint(
  path: epath.PathLike, step: int | None = None, latest: bool = True
) -> epath.Path:
  """Returns the directory of a checkpoint in T5X's or Orbax's format.

  Args:
    path: path of the checkpoint, of the index, or of a directory of checkpoints.
    step: step of a checkpoint in a directory of checkpoints.
    latest: whether `step=None` means the latest checkpoint of a directory.
  """
  if not str(path):
    raise ValueError("Expected the path of a checkpoint, got ''. Set CHECKPOINT_PATH.")
  directory = epath.Path(path)
  if directory.name == INDEX_FILE and directory.is_file():
    directory = directory.parent
  if not directory.exists():
    raise ValueError(
      f"Checkpoint {path} does not exist. Expected the directory of a checkpoint (with "
      f"a file '{INDEX_FILE}' or a folder 'state'). Check CHECKPOINT_PATH."
    )
  if is_t5x_format(directory) or orbax_format.is_orbax_format(directory):
    return directory
  steps = all_steps(directory)
  if step is None and latest and steps:
    step = steps[-1]
  if step in steps:
    return step_dir(directory, step)
  raise ValueError(
    f"{path} is not a checkpoint: {path} has neither a file '{INDEX_FILE}' (T5X) nor a "
    f"folder 'state' (Orbax). Checkpoints found in {path}: {steps or 'none'}"
    + (f"; the requested step is {step}." if step is not None else ".")
    + " Give the path of one checkpoint, such as .../checkpoint_1000."
  )


def _check_complete(directory, expected, stored) -> None:
  """Raises a ValueError if a parameter is missing or has another shape."""
  for name, leaf in expected.items():
    if name in stored and tuple(stored[name].shape) != tuple(leaf.shape):
      raise ValueError(
        f"Checkpoint {directory}: parameter {name} has shape "
        f"{tuple(stored[name].shape)}, but the model expects {tuple(leaf.shape)}. The "
        "model's configuration (vocab_size, emb_dim, num_heads, head_dim, mlp_dim) "
        "must match the checkpoint. Correct the configuration."
      )
  if missing := sorted(expected.keys() - stored.keys()):
    raise ValueError(
      f"Checkpoint {directory}: parameter {missing[0]} is missing ({len(missing)} of "
      f"the model's {len(expected)} parameters are missing: {missing[:5]}). The "
      f"checkpoint holds {len(stored)} arrays. The model's configuration (layers, "
      "mlp_activations, logits_via_embedding) must match the checkpoint. Correct the "
      "configuration."
    )


def flatten(tree: Mapping[str, Any]) -> dict[str, Any]:
  """Returns the leaves of nested dicts by path, as in target/decoder/..."""
  return traverse_util.flatten_dict(flax.core.unfreeze(tree), sep="/")


class _Manager:
  """Manages the checkpoints of a directory; subclasses order and default the fields."""

  directory: epath.PathLike  # Of the `checkpoint_<step>` directories.
  train_state: Any  # Names, shapes and logical axes of the parameters.
  partitioner: Any  # The layout of parameters on the devices.
  save_dtype: Any  # Of floating-point parameters on disk; None changes no dtype.
  restore_dtype: Any  # Of parameters after restoring; None keeps the stored dtype.

  def all_steps(self) -> list[int]:
    return all_steps(self.directory)

  def latest_step(self) -> int | None:
    return max(self.all_steps(), default=None)

  def restore(self, step: int | None = None, path: str | None = None) -> Any:
    """Returns the train state with a checkpoint's parameters and step.

    Args:
      step: step of a checkpoint in the directory; None means the latest.
      path: path of a checkpoint in T5X's or Orbax's format, instead of `step`.

    Raises:
      ValueError: if a parameter is missing, has another shape or is damaged.
    """
    if path is not None:
      directory = resolve_checkpoint(path, latest=False)
    else:
      directory = resolve_checkpoint(self.directory, step)
    if is_t5x_format(directory):
      stored = checkpoint_arrays.read_index(directory)
      read_arrays = checkpoint_arrays.read_arrays
    else:
      stored = orbax_format.read_index(directory)
      read_arrays = functools.partial(orbax_format.read_arrays, directory)
    expected = flatten(self.train_state.state_dict())
    _check_complete(directory, expected, stored)
    axes = {}
    if self.train_state.params_axes is not None:
      mesh_axes = self.partitioner.get_mesh_axes(self.train_state)
      axes = flatten({"target": mesh_axes.params})
    shardings = {
      name: NamedSharding(self.partitioner.mesh, axes.get(name) or PartitionSpec())
      for name in expected
    }
    targets = [name for name in expected if name.startswith("target/")]
    entries = {name: stored[name] for name in expected}
    state = read_arrays(entries, shardings, dict.fromkeys(targets, self.restore_dtype))
    return self.train_state.restore_state(traverse_util.unflatten_dict(state, sep="/"))

  def _flat(self, train_state) -> dict[str, Any]:
    """Returns the arrays to save by path, floating-point parameters in `save_dtype`."""
    arrays = flatten(train_state.state_dict())
    if self.save_dtype is None:
      return arrays
    dtype = jnp.dtype(self.save_dtype)
    for name, array in arrays.items():
      if name.startswith("target/") and jnp.issubdtype(array.dtype, jnp.floating):
        arrays[name] = array.astype(dtype)
    return arrays


@dataclasses.dataclass(eq=False)
class Checkpointer(_Manager):
  """Writes T5X's own format, and restores T5X's and Orbax's format."""

  train_state: Any
  partitioner: Any
  checkpoints_dir: epath.PathLike
  _: dataclasses.KW_ONLY
  save_dtype: Any = np.float32
  restore_dtype: Any = None

  @property
  def directory(self) -> epath.PathLike:
    return self.checkpoints_dir

  def save(self, train_state: Any) -> None:
    """Writes `checkpoint_<step>`; keeps an existing checkpoint of the step."""
    final = step_dir(self.directory, int(train_state.step))
    if final.exists():
      return
    partial = final.with_name(f"{final.name}.tmp-partial")
    first = jax.process_index() == 0
    if first:
      if partial.exists():
        partial.rmtree()
      partial.mkdir(parents=True)
    sync(f"{final.name}.begin")
    checkpoint_arrays.write_checkpoint(partial, self._flat(train_state), first)
    sync(f"{final.name}.written")
    if first:
      partial.rename(final)
    sync(f"{final.name}.end")


@dataclasses.dataclass(eq=False)
class OrbaxCheckpointManagerInterface(_Manager):
  """Writes Orbax's format in T5X's layout, and restores T5X's and Orbax's format."""

  directory: str
  train_state: Any
  partitioner: Any
  save_dtype: Any = None
  restore_dtype: Any = None

  def save(self, train_state: Any) -> bool:
    """Writes `checkpoint_<step>`, and returns True."""
    state = traverse_util.unflatten_dict(self._flat(train_state), sep="/")
    orbax_format.save(epath.Path(self.directory), int(train_state.step), state)
    return True

  def wait_until_finished(self) -> None:
    """Does nothing, because saving is synchronous."""

  def close(self) -> None:
    """Does nothing, because no thread or file is open."""
