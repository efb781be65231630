"""Saves and restores checkpoints in T5X's own format and in Orbax's format.

`Checkpointer` reads and writes T5X's format. `OrbaxCheckpointManagerInterface` writes
Orbax's format and restores both formats. Arrays are read directly into the final
sharding and dtype.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from etils import epath
from flax import traverse_util

from t5x import checkpoint_arrays, orbax_format
from t5x.checkpoint_arrays import VERSION as VERSION
from t5x.checkpoint_paths import (
  all_steps,
  find_checkpoint,
  latest_step,
  resolve_checkpoint,
  step_dir,
)
from t5x.checkpoint_restore import flatten, restore
from t5x.hosts import sync


def load_t5x_checkpoint(
  path: str, step: int | None = None, *, restore_dtype: Any = None
) -> Mapping[str, Any]:
  """Returns all arrays of a T5X checkpoint on the host, {'target': ..., 'state': ...}.

  Args:
    path: path of the checkpoint, or of a directory of checkpoints.
    step: step of a checkpoint in a directory of checkpoints; None means the latest.
    restore_dtype: dtype of the parameters; None keeps the stored dtypes.
  """
  entries = checkpoint_arrays.read_index(find_checkpoint(path, step).parent)
  targets = [name for name in entries if name.startswith("target/")]
  dtypes = dict.fromkeys(targets, restore_dtype)
  state = checkpoint_arrays.read_arrays(entries, {}, dtypes)
  return traverse_util.unflatten_dict(state, sep="/")


class _Manager:
  """Manages the checkpoints of a directory; subclasses define the fields."""

  def __post_init__(self):
    if self.dataset_iterator is not None:
      raise ValueError(
        "dataset_iterator must be None: checkpoints of datasets belong to training, "
        "and training is not in the contract. Use upstream T5X."
      )

  def all_steps(self) -> list[int]:
    return all_steps(self.directory)

  def latest_step(self) -> int | None:
    return latest_step(self.directory)

  def restore(
    self,
    step: int | None = None,
    path: str | None = None,
    fallback_state: Mapping[str, Any] | None = None,
    state_transformation_fns: Sequence[Any] = (),
    lazy_parameters: bool = False,
  ) -> Any:
    """Returns the train state with a checkpoint's parameters and step.

    Args:
      step: step of a checkpoint in the directory; None means the latest.
      path: path of a checkpoint, instead of `step`.
      fallback_state: values for parameters missing in the checkpoint, {'target': ...}.
      state_transformation_fns: must be empty.
      lazy_parameters: must be False.
    """
    if state_transformation_fns or lazy_parameters:
      raise ValueError(
        "Expected no state_transformation_fns, assignment_map or lazy_parameters: "
        "t5x_runtime restores checkpoints unchanged. Convert the checkpoint with "
        "upstream T5X first."
      )
    return restore(
      self._find(step, path),
      self.train_state,
      self.partitioner,
      self.restore_dtype,
      fallback_state,
    )

  def _find(self, step: int | None, path: str | None) -> epath.Path:
    raise NotImplementedError

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
  """Reads and writes T5X's own format.

  Attributes:
    train_state: names, shapes and logical axes of the parameters.
    partitioner: the layout of parameters on the devices.
    checkpoints_dir: directory of the `checkpoint_<step>` directories.
    dataset_iterator: must be None: training is not in the contract.
    keep: number of checkpoints to keep; None keeps all.
    save_dtype: dtype of floating-point parameters on disk; None changes no dtype.
    restore_dtype: dtype of parameters after restoring; None keeps the stored dtype.
  """

  train_state: Any
  partitioner: Any
  checkpoints_dir: epath.PathLike
  dataset_iterator: Any = None
  _: dataclasses.KW_ONLY
  keep: int | None = None
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
      for step in self.all_steps()[: -self.keep] if self.keep else ():
        step_dir(self.directory, step).rmtree()
    sync(f"{final.name}.end")

  def _find(self, step: int | None, path: str | None) -> epath.Path:
    if path is not None:
      return find_checkpoint(path).parent
    return find_checkpoint(self.directory, step).parent


@dataclasses.dataclass(eq=False)
class OrbaxCheckpointManagerInterface(_Manager):
  """Writes Orbax's format in T5X's layout, and restores T5X's and Orbax's format.

  Attributes:
    directory: directory of the `checkpoint_<step>` directories.
    train_state: names, shapes and logical axes of the parameters.
    partitioner: the layout of parameters on the devices.
    dataset_iterator: must be None: training is not in the contract.
    save_dtype: dtype of floating-point parameters on disk; None changes no dtype.
    restore_dtype: dtype of parameters after restoring; None keeps the stored dtype.
    keep: number of checkpoints to keep; None keeps all.
    period: unused period of saving in training; `save` writes at every step.
  """

  directory: str
  train_state: Any
  partitioner: Any
  dataset_iterator: Any = None
  save_dtype: Any = None
  restore_dtype: Any = None
  keep: int | None = None
  period: int | None = 1

  def save(self, train_state: Any) -> bool:
    """Writes `checkpoint_<step>`, and returns True."""
    state = traverse_util.unflatten_dict(self._flat(train_state), sep="/")
    orbax_format.save(
      epath.Path(self.directory), int(train_state.step), state, self.keep
    )
    return True

  def wait_until_finished(self) -> None:
    """Does nothing, because saving is synchronous."""

  def close(self) -> None:
    """Does nothing, because no thread or file is open."""

  def _find(self, step: int | None, path: str | None) -> epath.Path:
    if path is not None:
      return resolve_checkpoint(path, latest=False)
    return resolve_checkpoint(self.directory, step)
