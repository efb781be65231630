"""Saving and restoring checkpoints in T5X's own format and in Orbax's.

`Checkpointer` reads and writes T5X's; `OrbaxCheckpointManagerInterface` writes Orbax's
and restores either. Arrays go straight into their sharding and dtype.
"""

import re
from collections.abc import Mapping, Sequence
from typing import Any

import flax.core
import jax
import jax.numpy as jnp
import numpy as np
from etils import epath
from flax import traverse_util
from jax.experimental import multihost_utils
from jax.sharding import NamedSharding, PartitionSpec

from t5x import checkpoint_arrays, orbax_format
from t5x.checkpoint_arrays import INDEX_FILE
from t5x.checkpoint_arrays import VERSION as VERSION

PyTree = Any
_PREFIX = "checkpoint"
_STEP_DIR = re.compile(rf"{_PREFIX}_(\d+)$")


def all_steps(checkpoints_dir: str) -> list[int]:
  """The steps of the complete checkpoints (of either format) in a directory."""
  directory = epath.Path(checkpoints_dir)
  if not directory.is_dir():
    return []
  steps = []
  for child in directory.iterdir():
    match = _STEP_DIR.match(child.name)
    if match and (is_t5x_format(child) or orbax_format.is_orbax_format(child)):
      steps.append(int(match.group(1)))
  return sorted(steps)


def latest_step(checkpoints_dir: str) -> int | None:
  """The highest of `all_steps`, None where there is none."""
  return max(all_steps(checkpoints_dir), default=None)


def is_t5x_format(path: epath.PathLike) -> bool:
  """Whether a directory is a checkpoint in T5X's own format."""
  return (epath.Path(path) / INDEX_FILE).is_file()


def step_dir(checkpoints_dir: epath.PathLike, step: int) -> epath.Path:
  """Where the checkpoint of a step is, or would be."""
  return epath.Path(checkpoints_dir) / f"{_PREFIX}_{step}"


def get_checkpoint_dir(checkpoints_dir: str, step: int | None) -> str:
  """`step_dir` as text; a ValueError where there is no step."""
  if step is None:
    raise ValueError(
      f"No checkpoints in {checkpoints_dir}: expected folders {_PREFIX}_<step>. Check "
      "RestoreCheckpointConfig.path, or set mode='specific' for one checkpoint."
    )
  return str(step_dir(checkpoints_dir, step))


def find_checkpoint(path: epath.PathLike, step: int | None = None) -> epath.Path:
  """The index file of a T5X checkpoint.

  Args:
    path: the index, the checkpoint, or the directory of checkpoints.
    step: which one of the latter; the latest where None.
  """
  directory = resolve_checkpoint(path, step)
  if not is_t5x_format(directory):
    raise ValueError(
      f"Expected a checkpoint in T5X's format at {path}, got one in Orbax's. "
      "Restore it with OrbaxCheckpointManagerInterface."
    )
  return directory / INDEX_FILE


def resolve_checkpoint(
  path: epath.PathLike, step: int | None = None, latest: bool = True
) -> epath.Path:
  """The directory of one checkpoint, of either format.

  Args:
    path: the checkpoint, its index, or a directory of checkpoints.
    step: which one of the latter.
    latest: whether, without a step, a directory of checkpoints means its latest.
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
    f"{path} is not a checkpoint: it has neither a file '{INDEX_FILE}' (T5X) nor a "
    f"folder 'state' (Orbax). Checkpoints found in it: {steps or 'none'}"
    + (f"; step {step} was asked for." if step is not None else ".")
    + " Give the path of one checkpoint, such as .../checkpoint_1000."
  )


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
    flat = _cast(_flatten(train_state.state_dict()), self._save_dtype)
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
    flat = _cast(_flatten(train_state.state_dict()), self._save_dtype)
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


def restore_t5x(
  directory: epath.Path, train_state, partitioner, restore_dtype, fallback_state=None
):
  """Restores a checkpoint in T5X's format."""
  entries = checkpoint_arrays.read_index(directory)
  shapes = {name: entry.shape for name, entry in entries.items()}
  plan = _RestorePlan(
    directory, train_state, partitioner, restore_dtype, fallback_state, shapes
  )
  wanted = {name: entries[name] for name in plan.stored}
  values = checkpoint_arrays.read_arrays(wanted, plan.shardings, plan.dtypes)
  return plan.finish(values)


def restore_orbax(
  directory: epath.Path, train_state, partitioner, restore_dtype, fallback_state=None
):
  """Restores a checkpoint in Orbax's format."""
  plan = _RestorePlan(
    directory,
    train_state,
    partitioner,
    restore_dtype,
    fallback_state,
    orbax_format.read_shapes(directory),
  )
  return plan.finish(
    orbax_format.read_arrays(directory, plan.stored, plan.shardings, plan.dtypes)
  )


class _RestorePlan:
  """What to read from a checkpoint, where to put it, and the checks of both."""

  def __init__(
    self, directory, train_state, partitioner, restore_dtype, fallback_state, shapes
  ):
    self._directory = directory
    self._train_state = train_state
    self._fallback = _flatten(fallback_state or {})
    expected = _flatten(train_state.state_dict())
    expected.setdefault("state/step", np.zeros((), np.int32))
    self._mesh = partitioner.mesh
    specs = self._specs(partitioner)
    self.stored = []
    for name, leaf in expected.items():
      if name in shapes:
        self._check_shape(name, tuple(leaf.shape) if leaf is not None else (), shapes)
        self.stored.append(name)
      elif name not in self._fallback:
        self._fail_missing(name, expected, shapes)
    self._expected = expected
    self.shardings = {
      name: NamedSharding(self._mesh, specs.get(name) or PartitionSpec())
      for name in expected
    }
    self.dtypes = {
      name: restore_dtype for name in expected if name.startswith("target/")
    }

  def _specs(self, partitioner) -> dict[str, PartitionSpec]:
    if self._train_state.params_axes is None:
      return {}
    axes = partitioner.get_mesh_axes(self._train_state).params
    return {f"target/{k}": v for k, v in _flatten(axes).items()}

  def _check_shape(self, name, expected, shapes) -> None:
    if shapes[name] != expected:
      raise ValueError(
        f"Checkpoint {self._directory}: parameter {name} has shape {shapes[name]}, but "
        f"the model expects {expected}. Check that the model's configuration "
        "(vocab_size, emb_dim, num_heads, head_dim, mlp_dim) is that of the checkpoint."
      )

  def _fail_missing(self, name, expected, shapes) -> None:
    missing = sorted(set(expected) - set(shapes) - set(self._fallback))
    raise ValueError(
      f"Checkpoint {self._directory}: parameter {name} is missing ({len(missing)} of "
      f"the {len(expected)} that the model expects are: {missing[:5]}). The checkpoint "
      f"holds {len(shapes)} arrays. Check that the model's configuration (layers, "
      "mlp_activations, logits_via_embedding) is that of the checkpoint, or set "
      "RestoreCheckpointConfig.fallback_to_scratch."
    )

  def finish(self, values: Mapping[str, Any]) -> Any:
    """The train state with the values read, and the fallback's for the rest."""
    state = dict(values)
    for name in self._expected:
      if name not in state:
        state[name] = jax.device_put(self._fallback[name], self.shardings[name])
    return self._train_state.restore_state(traverse_util.unflatten_dict(state, sep="/"))


def _flatten(tree: Mapping[str, Any]) -> dict[str, Any]:
  return traverse_util.flatten_dict(flax.core.unfreeze(tree), sep="/")


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
