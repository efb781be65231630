"""Checkpoints of a training run: parameters, and beside them the optimizer's state.

A step has two parts in the run's directory: its parameters, `checkpoint_<step>`, in
T5X's format, and `optimizer_<step>`, an Orbax checkpoint of the optimizer's state and
the position in the data. Each part appears whole, by a rename, and a step counts only
with both: a run may be killed at any moment.
"""

import json
import os
import re
from collections.abc import Mapping
from typing import Any, NamedTuple, Protocol

import jax
import numpy as np
import orbax.checkpoint as ocp
from etils import epath
from flax.training.train_state import TrainState

from specdec_t5x.t5x_bridge import preflight

PARAMETERS, OPTIMIZER = "checkpoint", "optimizer"
SETTINGS = "training.json"


class Position(NamedTuple):
  """Where the next batch begins: a row of an epoch, both from 0."""

  epoch: int = 0
  row: int = 0


START = Position()


class ParameterStore(Protocol):
  """Writes and reads the parameters alone, as <directory>/checkpoint_<step>."""

  def save(self, step: int, params: Any) -> None: ...

  def restore(self, step: int) -> Any: ...


class Checkpoints:
  """The checkpoints of one run.

  Orbax's CheckpointManager knows its own part alone. It would count a step without
  parameters, and keep that one in place of a whole one.

  Args:
    directory: of the run.
    parameters: writes and reads the parameters.
    keep: how many of the latest steps stay; 0 keeps all.
  """

  def __init__(self, directory: str, parameters: ParameterStore, keep: int = 0):
    if keep < 0:
      raise ValueError(f"KEEP must be at least 0, got {keep}. 0 keeps all checkpoints.")
    self._directory = epath.Path(directory).absolute()
    self._parameters = parameters
    self._keep = keep

  def steps(self) -> list[int]:
    """The steps that have both parts, in order."""
    return sorted(self._steps_of(PARAMETERS) & self._steps_of(OPTIMIZER))

  def save(self, state: TrainState, position: Position) -> None:
    """Writes both parts of a step, over whatever of it is there."""
    step = int(state.step)
    # Parts of a killed run: writers would refuse them, or leave an old one in place.
    self._remove(step)
    with ocp.StandardCheckpointer() as writer:
      writer.save(self._directory / f"{OPTIMIZER}_{step}", _item(state, position))
      writer.wait_until_finished()
    self._parameters.save(step, state.params)
    for old in self.steps()[: -self._keep] if self._keep else ():
      self._remove(old)

  def drop_last(self) -> None:
    """Removes the last whole step: what is restored then is the one before."""
    self._remove(self.steps()[-1])

  def restore(self, like: TrainState) -> tuple[TrainState, Position] | None:
    """Returns the state and position of the last whole step; None before the first.

    Args:
      like: a state with the shapes and shardings that are expected.

    Raises:
      ValueError: where there are parameters without an optimizer's state alone, or a
        part can't be read.
    """
    steps = self.steps()
    if not steps:
      if lonely := self._steps_of(PARAMETERS):
        last = max(lonely)
        raise ValueError(
          f"{self._directory} holds {PARAMETERS}_{last} but no optimizer state "
          f"({OPTIMIZER}_{last}), so its training can't go on there. To train from its "
          "parameters, set INIT_CHECKPOINT_PATH to it and choose another OUTPUT_DIR."
        )
      return None
    step = steps[-1]
    path = self._directory / f"{OPTIMIZER}_{step}"
    try:
      with ocp.StandardCheckpointer() as reader:
        found = reader.restore(path, jax.tree.map(_describe, _item(like, Position())))
    except Exception as error:  # Orbax and tensorstore each raise their own.
      raise ValueError(
        f"{path} can't be read ({type(error).__name__}: {error}). If another optimizer "
        "or network wrote it, choose another OUTPUT_DIR; if it is damaged, delete it "
        "to go on from the step before."
      ) from error
    params = jax.tree.map(
      lambda old, new: jax.device_put(new, old.sharding),
      like.params,
      self._parameters.restore(step),
    )
    counted = jax.device_put(np.int32(step), like.step.sharding)
    state = like.replace(step=counted, params=params, opt_state=found["optimizer"])
    return state, Position(int(found["epoch"]), int(found["row"]))

  def _steps_of(self, name: str) -> set[int]:
    paths = self._directory.glob(f"{name}_*")
    matches = (re.fullmatch(rf"{name}_(\d+)", path.name) for path in paths)
    return {int(match[1]) for match in matches if match}

  def _remove(self, step: int) -> None:
    # Parameters first: without them the step does not count any more.
    for name in (PARAMETERS, OPTIMIZER):
      part = self._directory / f"{name}_{step}"
      leftovers = self._directory.glob(f"{part.name}.orbax-checkpoint-tmp*")
      for path in (part, *leftovers):
        if path.exists():
          path.rmtree()


def claim(directory: str, settings: Mapping[str, Any]) -> None:
  """Makes a run's directory, and checks that it is the same run's that began there.

  Args:
    directory: of the run.
    settings: what the parameters after a given number of steps follow from.

  Raises:
    ValueError: where the directory can't be written to, or began with others.
  """
  settings = json.loads(json.dumps(settings, default=str))
  path = epath.Path(directory) / SETTINGS
  try:
    path.parent.mkdir(parents=True, exist_ok=True)
    if not path.exists():
      partial = path.with_name(f"{SETTINGS}.partial")
      partial.write_text(json.dumps(settings, indent=2) + "\n")
      partial.replace(path)
    known = json.loads(path.read_text())
  except OSError as error:
    raise ValueError(
      f"OUTPUT_DIR={directory} can't be written to ({error}). Choose a directory that "
      "you may create files in."
    ) from error
  names = sorted({*settings, *known})
  changed = [name for name in names if known.get(name) != settings.get(name)]
  if changed:
    name = changed[0]
    raise ValueError(
      f"OUTPUT_DIR={directory} holds a run with other settings ({', '.join(changed)} "
      f"differ): {name} was {known.get(name)} and is now {settings.get(name)}. Choose "
      "another OUTPUT_DIR, or the settings that the run began with."
    )


def _item(state: TrainState, position: Position) -> dict[str, Any]:
  return {
    "optimizer": state.opt_state,
    "epoch": np.asarray(position.epoch, np.int64),
    "row": np.asarray(position.row, np.int64),
  }


def _describe(leaf):
  if isinstance(leaf, np.ndarray):
    return leaf
  return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=leaf.sharding)


def new_checkpoint(output_dir: str) -> str:
  """Returns the path of a checkpoint_0 that is to be written.

  Raises:
    ValueError: where there is one, or it can't be written.
  """
  path = os.path.join(os.path.abspath(output_dir), "checkpoint_0")
  if os.path.exists(path):
    raise ValueError(
      f"OUTPUT_DIR={output_dir} holds a checkpoint_0 already. Choose another "
      "directory, or remove it to make it again."
    )
  preflight.check_writable(output_dir)
  return path
