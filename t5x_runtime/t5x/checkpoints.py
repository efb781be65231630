"""Saving and restoring checkpoints in T5X's own format and in Orbax's.

`Checkpointer` reads and writes T5X's; `OrbaxCheckpointManagerInterface` writes Orbax's
and restores either. Arrays go straight into their sharding and dtype.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from etils import epath
from flax import traverse_util
from jax.experimental import multihost_utils

from t5x import checkpoint_arrays, orbax_format
from t5x.checkpoint_arrays import VERSION as VERSION
from t5x.checkpoint_paths import (
  all_steps,
  find_checkpoint,
  is_t5x_format,
  latest_step,
  resolve_checkpoint,
  step_dir,
)
from t5x.checkpoint_paths import get_checkpoint_dir as get_checkpoint_dir
from t5x.checkpoint_restore import flatten, restore_orbax, restore_t5x

PyTree = Any


def load_t5x_checkpoint(
  path: str,
  step: int | None = None,
  state_transformation_fns: Sequence[Any] = (),
  remap: bool = True,
  restore_dtype: Any = None,
  lazy_parameters: bool = False,
) -> PyTree:
  """Everything in a T5X checkpoint as host arrays, {'target': ..., 'state': ...}.

  Args:
    path: of the checkpoint, or of a directory of checkpoints.
    step: which one of the latter; the latest where None.
    state_transformation_fns: must be empty.
    remap: accepted for compatibility; names are never changed.
    restore_dtype: dtype of the floating-point parameters; the stored one where None.
    lazy_parameters: must be False.
  """
  del remap
  _refuse(state_transformation_fns, lazy_parameters)
  entries = checkpoint_arrays.read_index(find_checkpoint(path, step).parent)
  targets = [name for name in entries if name.startswith("target/")]
  dtypes = dict.fromkeys(targets, restore_dtype)
  state = checkpoint_arrays.read_arrays(entries, {}, dtypes)
  return traverse_util.unflatten_dict(state, sep="/")


class Checkpointer:
  """Reads and writes T5X's own format.

  Args:
    train_state: names, shapes and logical axes of the parameters.
    partitioner: says where each parameter lives.
    checkpoints_dir: where `checkpoint_<step>` directories are.
    dataset_iterator: must be None: training is not in the contract.
    keep: how many checkpoints stay; all where None.
    save_dtype: dtype of floating-point parameters on disk; as they are where None.
    restore_dtype: their dtype after restoring; as stored where None.
    keep_dataset_checkpoints: accepted for compatibility.
  """

  def __init__(
    self,
    train_state: Any,
    partitioner: Any,
    checkpoints_dir: epath.PathLike,
    dataset_iterator: Any = None,
    *,
    keep: int | None = None,
    save_dtype: Any = np.float32,
    restore_dtype: Any = None,
    keep_dataset_checkpoints: int | None = None,
  ):
    del keep_dataset_checkpoints
    _refuse_dataset(dataset_iterator)
    self._train_state = train_state
    self._partitioner = partitioner
    self.checkpoints_dir = epath.Path(checkpoints_dir)
    self.keep = keep
    self._save_dtype = save_dtype
    self.restore_dtype = restore_dtype

  def all_steps(self) -> list[int]:
    return all_steps(self.checkpoints_dir)

  def latest_step(self) -> int | None:
    return latest_step(self.checkpoints_dir)

  def save(
    self,
    train_state: Any,
    state_transformation_fns: Sequence[Any] = (),
    *,
    concurrent_gb: int = 128,
  ) -> None:
    """Writes `checkpoint_<step>`; an existing one of that step is left as it is."""
    del concurrent_gb
    _refuse(state_transformation_fns)
    final = step_dir(self.checkpoints_dir, int(train_state.step))
    if final.exists():
      return
    partial = final.with_name(f"{final.name}.tmp-partial")
    first = jax.process_index() == 0
    if first:
      if partial.exists():
        partial.rmtree()
      partial.mkdir(parents=True)
    _sync(f"{final.name}.begin")
    flat = _cast(flatten(train_state.state_dict()), self._save_dtype)
    inline = frozenset(name for name in flat if name.startswith("state/"))
    checkpoint_arrays.write_checkpoint(partial, flat, inline, first)
    _sync(f"{final.name}.written")
    if first:
      partial.rename(final)
      for step in self.all_steps()[: -self.keep] if self.keep else ():
        step_dir(self.checkpoints_dir, step).rmtree()
    _sync(f"{final.name}.end")

  def restore(
    self,
    step: int | None = None,
    path: str | None = None,
    state_transformation_fns: Sequence[Any] = (),
    fallback_state: Mapping[str, Any] | None = None,
    lazy_parameters: bool = False,
  ) -> Any:
    """The train state with a checkpoint's parameters and step.

    Args:
      step: which checkpoint of `checkpoints_dir`; the latest where None.
      path: a checkpoint, instead of `step`.
      state_transformation_fns: must be empty.
      fallback_state: values of what the checkpoint lacks, {'target': ...}.
      lazy_parameters: must be False.
    """
    _refuse(state_transformation_fns, lazy_parameters)
    where = self.checkpoints_dir if path is None else path
    index = find_checkpoint(where, step if path is None else None)
    return restore_t5x(
      index.parent,
      self._train_state,
      self._partitioner,
      self.restore_dtype,
      fallback_state,
    )


class OrbaxCheckpointManagerInterface:
  """Writes Orbax's format as T5X lays it out and restores either format.

  Args:
    directory: where `checkpoint_<step>` directories are.
    train_state: names, shapes and logical axes of the parameters.
    partitioner: says where each parameter lives.
    dataset_iterator: must be None: training is not in the contract.
    save_dtype: dtype of floating-point parameters on disk; as they are where None.
    restore_dtype: their dtype after restoring; as stored where None.
    keep: how many checkpoints stay; all where None.
    period: steps that are no multiple of it are not saved (unless forced).
    checkpoint_steps: the only steps that are saved, instead of `period`.
  """

  def __init__(
    self,
    directory: str,
    train_state: Any,
    partitioner: Any,
    dataset_iterator: Any = None,
    save_dtype: Any = None,
    restore_dtype: Any = None,
    keep: int | None = None,
    period: int | None = 1,
    checkpoint_steps: Sequence[int] | None = None,
  ):
    _refuse_dataset(dataset_iterator)
    self._directory = epath.Path(directory)
    self._train_state = train_state
    self._partitioner = partitioner
    self._save_dtype = save_dtype
    self._restore_dtype = restore_dtype
    self._keep = keep
    self._period = period
    self._checkpoint_steps = checkpoint_steps

  @property
  def directory(self) -> epath.Path:
    return self._directory

  def all_steps(self) -> list[int]:
    return all_steps(self._directory)

  def latest_step(self) -> int | None:
    return latest_step(self._directory)

  def should_save(self, step: int) -> bool:
    """Whether the schedule asks for this step and it is not there yet."""
    if step in self.all_steps():
      return False
    if self._checkpoint_steps is not None:
      return step in self._checkpoint_steps
    return not self._period or step % self._period == 0

  def save(
    self,
    train_state: Any,
    state_transformation_fns: Sequence[Any] = (),
    force: bool = True,
  ) -> bool:
    """Writes `checkpoint_<step>`; returns whether it did."""
    _refuse(state_transformation_fns)
    step = int(train_state.step)
    if not force and not self.should_save(step):
      return False
    flat = _cast(flatten(train_state.state_dict()), self._save_dtype)
    state = traverse_util.unflatten_dict(flat, sep="/")
    orbax_format.save(self._directory, step, state, self._keep)
    return True

  def wait_until_finished(self) -> None:
    """Does nothing: saving is synchronous."""

  def close(self) -> None:
    """Does nothing: no thread or file is held."""

  def restore(
    self,
    step: int | None = None,
    path: str | None = None,
    fallback_state: Mapping[str, Any] | None = None,
    state_transformation_fns: Sequence[Any] = (),
    lazy_parameters: bool = False,
  ) -> Any:
    """The train state with a checkpoint's parameters and step.

    Args:
      step: which checkpoint of `directory`; the latest where None.
      path: one checkpoint of either format, instead of `step`.
      fallback_state: values of what the checkpoint lacks, {'target': ...}.
      state_transformation_fns: must be empty.
      lazy_parameters: must be False.
    """
    _refuse(state_transformation_fns, lazy_parameters)
    if path is None:
      directory = resolve_checkpoint(self._directory, step)
    else:
      directory = resolve_checkpoint(path, latest=False)
    read = restore_t5x if is_t5x_format(directory) else restore_orbax
    return read(
      directory,
      self._train_state,
      self._partitioner,
      self._restore_dtype,
      fallback_state,
    )


def _cast(flat: Mapping[str, Any], dtype) -> dict[str, Any]:
  """Casts the floating-point parameters, not the state."""
  if dtype is None:
    return dict(flat)
  convert = lambda name, leaf: (
    leaf.astype(jnp.dtype(dtype))
    if name.startswith("target/") and jnp.issubdtype(leaf.dtype, jnp.floating)
    else leaf
  )
  return {name: convert(name, leaf) for name, leaf in flat.items()}


def _refuse(state_transformation_fns: Sequence[Any], lazy_parameters=False) -> None:
  if state_transformation_fns or lazy_parameters:
    raise ValueError(
      "Expected no state_transformation_fns, assignment_map or lazy_parameters: this "
      "provider of t5x restores checkpoints as they are. Convert the checkpoint with "
      "upstream T5X first."
    )


def _refuse_dataset(dataset_iterator) -> None:
  if dataset_iterator is not None:
    raise ValueError(
      "Expected dataset_iterator=None: checkpoints of datasets belong to training, "
      "which is not in the contract. Use upstream T5X."
    )


def _sync(name: str) -> None:
  if jax.process_count() > 1:
    multihost_utils.sync_global_devices(name)
