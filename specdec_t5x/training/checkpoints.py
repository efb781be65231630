"""Checkpoints of a training run: the parameters, and the optimizer's state.

A step has two parts in the run's directory: `checkpoint_<step>` holds the parameters in
T5X's format, and `optimizer_<step>` is an Orbax checkpoint of the optimizer's state and
the position in the data. A rename makes each part appear complete. A step counts only
with both parts, because a run may be killed at any moment.
"""

import json
import os
import re
from collections.abc import Mapping
from typing import Any, NamedTuple

import jax
import numpy as np
import orbax.checkpoint as ocp
from etils import epath
from flax.training.train_state import TrainState

from specdec_t5x.t5x_bridge.restore import check_writable

PARAMETERS = "checkpoint"
OPTIMIZER = "optimizer"
SETTINGS = "training.json"


class Position(NamedTuple):
  """The start of the next batch: an epoch and a row, counted from 0."""

  epoch: int = 0
  row: int = 0


START = Position()


class Checkpoints:
  """The checkpoints of one run.

  Orbax's CheckpointManager would see the optimizer's part only. The manager would count
  a step without parameters, and keep such a step instead of a complete step.

  Args:
    directory: the run's directory.
    parameters: writes and reads <directory>/checkpoint_<step>, as
      `t5x_bridge.restore.T5XParameters` does.
    keep: number of the latest steps to keep; 0 keeps all.
  """

  def __init__(self, directory: str, parameters: Any, keep: int = 0):
    if keep < 0:
      raise ValueError(
        f"KEEP must be at least 0, got {keep}. 0 keeps every checkpoint."
      )
    self._directory = epath.Path(directory).absolute()
    self._parameters = parameters
    self._keep = keep

  def steps(self) -> list[int]:
    """Returns the steps that have both parts, in order."""
    return sorted(self._steps_of(PARAMETERS) & self._steps_of(OPTIMIZER))

  def save(self, state: TrainState, position: Position) -> None:
    """Writes both parts of a step, and replaces existing parts of the step."""
    step = int(state.step)
    # Writers would refuse to replace the parts of a killed run, or keep an old part.
    self._remove(step)
    with ocp.StandardCheckpointer() as writer:
      writer.save(self._directory / f"{OPTIMIZER}_{step}", _item(state, position))
      writer.wait_until_finished()
    self._parameters.save(step, state.params)
    for old in self.steps()[: -self._keep] if self._keep else ():
      self._remove(old)

  def restore(
    self, like: TrainState, step: int | None = None
  ) -> tuple[TrainState, Position] | None:
    """Returns the state and position of a complete step; None if there is no step.

    Args:
      like: a state with the expected shapes and shardings.
      step: a step; by default the last.

    Raises:
      ValueError: if there are only parameters without an optimizer's state, or a part
        can't be read.
    """
    steps = self.steps()
    if not steps:
      if steps_without_optimizer := self._steps_of(PARAMETERS):
        last = max(steps_without_optimizer)
        raise ValueError(
          f"{self._directory} holds {PARAMETERS}_{last} but no optimizer state "
          f"({OPTIMIZER}_{last}), so training can't continue. To train from the "
          f"parameters, set INIT_CHECKPOINT_PATH to {PARAMETERS}_{last} and choose "
          "another OUTPUT_DIR."
        )
      return None
    step = steps[-1] if step is None else step
    path = self._directory / f"{OPTIMIZER}_{step}"
    try:
      with ocp.StandardCheckpointer() as reader:
        restored = reader.restore(path, _item(like, Position()))
    except Exception as error:  # Orbax and tensorstore raise different types.
      raise ValueError(
        f"{path} can't be read ({type(error).__name__}: {error}). If the checkpoint "
        "belongs to another optimizer or network, choose another OUTPUT_DIR. If the "
        "checkpoint is damaged, delete the checkpoint to continue from the previous "
        "step."
      ) from error
    shardings = jax.tree.map(lambda x: x.sharding, (like.step, like.params))
    new = np.int32(step), self._parameters.restore(step)
    step, params = jax.device_put(new, shardings)
    state = like.replace(
      step=step,
      params=params,
      opt_state=restored["optimizer"],
    )
    return state, Position(int(restored["epoch"]), int(restored["row"]))

  def _steps_of(self, name: str) -> set[int]:
    paths = self._directory.glob(f"{name}_*")
    matches = (re.fullmatch(rf"{name}_(\d+)", path.name) for path in paths)
    return {int(match[1]) for match in matches if match}

  def _remove(self, step: int) -> None:
    # Parameters come first: a step without parameters does not count any more.
    for name in (PARAMETERS, OPTIMIZER):
      part = self._directory / f"{name}_{step}"
      leftovers = self._directory.glob(f"{part.name}.orbax-checkpoint-tmp*")
      for path in (part, *leftovers):
        path.rmtree(missing_ok=True)


def claim(directory: str, settings: Mapping[str, Any]) -> None:
  """Creates a run's directory, or checks that the directory belongs to the same run.

  Args:
    directory: the run's directory.
    settings: the settings that determine the parameters after each step.

  Raises:
    ValueError: if the directory is not writable, or holds a run with other settings.
  """
  settings = json.loads(json.dumps(settings, default=str))
  path = epath.Path(directory) / SETTINGS
  check_writable(directory, "OUTPUT_DIR")
  path.parent.mkdir(parents=True, exist_ok=True)
  if not path.exists():
    partial = path.with_name(f"{SETTINGS}.partial")
    partial.write_text(json.dumps(settings, indent=2) + "\n")
    partial.replace(path)
  old = json.loads(path.read_text())
  names = sorted({*settings, *old})
  changed = [name for name in names if old.get(name) != settings.get(name)]
  if changed:
    name = changed[0]
    raise ValueError(
      f"OUTPUT_DIR={directory} holds a run with other settings ({', '.join(changed)} "
      f"differ): {name} was {old.get(name)} and is now {settings.get(name)}. Choose "
      "another OUTPUT_DIR, or the settings of the earlier run."
    )


def _item(state: TrainState, position: Position) -> dict[str, Any]:
  return {
    "optimizer": state.opt_state,
    "epoch": np.asarray(position.epoch, np.int64),
    "row": np.asarray(position.row, np.int64),
  }


def new_checkpoint(output_dir: str) -> str:
  """Returns the path of a new checkpoint_0 in `output_dir`.

  Raises:
    ValueError: if checkpoint_0 exists, or `output_dir` is not writable.
  """
  path = os.path.join(os.path.abspath(output_dir), "checkpoint_0")
  if os.path.exists(path):
    raise ValueError(
      f"OUTPUT_DIR={output_dir} already holds a checkpoint_0. Choose another "
      "directory, or remove the checkpoint."
    )
  check_writable(output_dir, "OUTPUT_DIR")
  return path
