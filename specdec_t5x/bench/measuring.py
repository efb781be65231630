"""Measures cells, or finds them where they were measured before."""

import argparse
import dataclasses
import sys
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
from tqdm import tqdm

from specdec_t5x.bench.cells import Cells
from specdec_t5x.bench.jobs import Job
from specdec_t5x.bench.measured import Measured, Setting
from specdec_t5x.bench.study import Draft, Study
from specdec_t5x.bench.walltime import alternate

# Inputs decoded before the tokens are counted. Even, so that over all of them each
# program comes first as often as the other (`walltime.alternate`).
_CHUNK = 16


@dataclasses.dataclass(frozen=True)
class Found:
  """A cell and what it is of; `measured` is None where nothing was to be measured."""

  task: str
  target: str
  draft: str
  setting: Setting
  measured: Measured | None

  @property
  def name(self) -> dict[str, str | float]:
    """What a table's row is of."""
    temperature = self.setting.temperature
    return {"task": self.task, "draft": self.draft, "temperature": temperature}

  @property
  def row(self) -> dict[str, Any]:
    """A table's row; without numbers where nothing was measured."""
    numbers = {"gamma": self.setting.gamma}
    return {**self.name, **(self.measured.row() if self.measured else numbers)}


def measure_all(
  args: argparse.Namespace,
  jobs: Iterable[Job],
  settings: Callable[[Draft], Sequence[Setting]],
) -> list[Found]:
  """Returns the cells asked for; each is kept as soon as it is measured.

  Args:
    args: flags `output`, for the cells, and `recorded`, to measure nothing.
    jobs: what is decoded.
    settings: of each draft.

  Raises:
    ValueError: where what a job names can't be read.
  """
  cells, found = Cells(args.output), []
  for job in jobs:
    study = job.load()
    wanted = [(draft, each) for draft in study.drafts for each in settings(draft)]
    with tqdm(wanted, desc=study.job.task, unit="cell", file=sys.stderr) as bar:
      for draft, setting in bar:
        bar.set_postfix_str(f"{draft.name}, {describe(setting)}")
        cell = _recall(study, draft, setting, cells)
        if cell is None and not args.recorded:
          cell = measure(study, draft, setting)
          cells.add(study.key(draft, setting), cell.to_result())
        found.append(Found(study.job.task, job.target, draft.name, setting, cell))
  if other := cells.unasked():
    print(
      f"{cells.path} has {other} more cells, of other settings, code or machines; "
      "they are not shown.",
      file=sys.stderr,
    )
  return found


def describe(setting: Setting) -> str:
  """Returns a setting in a few words."""
  lenience = f", l={setting.lenience:g}" if setting.lenience != 1.0 else ""
  return f"T={setting.temperature:g}, gamma={setting.gamma}{lenience}"


def measure(study: Study, draft: Draft, setting: Setting) -> Measured:
  """Decodes inputs until there are `study.job.num_tokens` tokens, and times the parts.

  Batch 1. Where the setting is timed, every input is also decoded plainly, in turn.
  """
  decoder, params = study.together(draft, setting)
  temperature = setting.temperature
  programs = {"ours": study.program(decoder, params, temperature)}
  if setting.timed:
    programs["plain"] = study.plain(study.target, temperature)
  chunks = []
  for first in range(0, len(study.inputs), _CHUNK):
    timed = alternate(programs, range(len(study.inputs))[first : first + _CHUNK])
    chunks.append(Measured.timed(setting, timed["ours"], timed.get("plain")).columns)
    if sum(chunk["emitted"].sum() for chunk in chunks) >= study.job.num_tokens:
      break
  columns = {name: np.concatenate([c[name] for c in chunks]) for name in chunks[0]}
  costs = None
  if setting.timed:
    costs = study.costs([decoder], params, temperature)[setting.gamma]
  return Measured(setting, columns, costs)


def _recall(study, draft, setting, cells):
  result = cells.find(study.key(draft, setting))
  if result is None and not setting.timed:
    # A cell that was timed has the same counts.
    timed = dataclasses.replace(setting, timed=True)
    result = cells.find(study.key(draft, timed))
  return None if result is None else Measured.of(setting, result)
