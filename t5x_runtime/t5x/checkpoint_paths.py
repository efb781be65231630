"""Finds checkpoints on disk: folders `checkpoint_<step>` in T5X's or Orbax's format."""

import re

from etils import epath

from t5x import orbax_format
from t5x.checkpoint_arrays import INDEX_FILE

_PREFIX = "checkpoint"
_STEP_DIR = re.compile(rf"{_PREFIX}_(\d+)$")


def all_steps(checkpoints_dir: str) -> list[int]:
  """Returns the steps of a directory's complete checkpoints, in both formats."""
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
  """Returns the last of `all_steps`, or None without checkpoints."""
  return max(all_steps(checkpoints_dir), default=None)


def is_t5x_format(path: epath.PathLike) -> bool:
  """Returns whether a directory is a checkpoint in T5X's own format."""
  return (epath.Path(path) / INDEX_FILE).is_file()


def step_dir(checkpoints_dir: epath.PathLike, step: int) -> epath.Path:
  """Returns the path of a step's checkpoint."""
  return epath.Path(checkpoints_dir) / f"{_PREFIX}_{step}"


def find_checkpoint(path: epath.PathLike, step: int | None = None) -> epath.Path:
  """Returns the path of the index file of a T5X checkpoint.

  Args:
    path: path of the index, of the checkpoint, or of a directory of checkpoints.
    step: step of a checkpoint in a directory of checkpoints; None means the latest.
  """
  directory = resolve_checkpoint(path, step)
  if not is_t5x_format(directory):
    raise ValueError(
      f"Expected a checkpoint in T5X's format at {path}, got a checkpoint in Orbax's "
      "format. Restore the checkpoint with OrbaxCheckpointManagerInterface."
    )
  return directory / INDEX_FILE


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
