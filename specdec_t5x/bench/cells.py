"""Cells: what one way to decode did with inputs, measured once and kept.

A cell is found again by its key, which holds every setting that determines it, the
device, the versions and this package's code among them. Nothing is ever taken out of
the file.
"""

import argparse
import dataclasses
import json
import os
import pathlib
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from specdec_t5x.bench.costs import measure_costs
from specdec_t5x.bench.measured import Measured, Setting
from specdec_t5x.bench.run import PLAIN, Run, Way, measure
from specdec_t5x.bench.study import Draft, Job, Study

FILE = "cells.jsonl"

Key = Mapping[str, Any]


class Cells:
  """The cells of one folder."""

  def __init__(self, folder: str | os.PathLike):
    self.path = pathlib.Path(folder) / FILE
    self._asked: set[str] = set()
    self._results, self._whole = self._read()

  def find(self, key: Key) -> dict[str, Any] | None:
    """Returns the result measured with exactly this key, None where there is none."""
    name = _canonical(key)
    self._asked.add(name)
    return self._results.get(name)

  def add(self, key: Key, result: Mapping[str, Any]) -> None:
    """Keeps a result, on the disk before this returns."""
    name = _canonical(key)
    line = json.dumps({"key": json.loads(name), "result": result}) + "\n"
    self.path.parent.mkdir(parents=True, exist_ok=True)
    with self.path.open("a", encoding="utf-8") as file:
      # A line that a killed run left unfinished stays, on a line of its own.
      file.write(line if self._whole else f"\n{line}")
      file.flush()
      os.fsync(file.fileno())
    self._whole = True
    self._results[name] = json.loads(json.dumps(result))

  def get(
    self, key: Key, measure: Callable[[], Any], recorded: bool = False
  ) -> dict[str, Any] | None:
    """Returns the result with this key; where there is none it is measured, and kept.

    Args:
      key: everything that determines it.
      measure: returns it, or None where it can't be had.
      recorded: whether nothing is to be measured: then, too, it may be None.
    """
    result = self.find(key)
    if result is None and not recorded and (measured := measure()) is not None:
      self.add(key, measured)
      result = self.find(key)
    return result

  def take(self, folder: str | os.PathLike) -> None:
    """Adds the cells of another folder that this one lacks.

    Raises:
      ValueError: if that folder has no cells.
    """
    other = Cells(folder)
    if not other.path.exists():
      raise ValueError(
        f"Expected {FILE} in the folder of --resume, got {os.fspath(folder)!r} without "
        "it. Name the --output of an earlier run."
      )
    for name in other._results.keys() - self._results.keys():
      self.add(json.loads(name), other._results[name])

  def unasked(self) -> int:
    """Returns how many cells `find` was not asked for; 0 if it was for none at all."""
    if not self._asked:
      return 0
    return len(self._results.keys() - self._asked)

  def _read(self):
    if not self.path.exists():
      return {}, True
    text = self.path.read_text(encoding="utf-8", errors="replace")
    results = {}
    for number, line in enumerate(text.split("\n"), start=1):
      if not line.strip():
        continue
      try:
        cell = json.loads(line)
        results[_canonical(cell["key"])] = cell["result"]
      except (ValueError, KeyError, TypeError):
        print(
          f"{self.path}, line {number}: not a whole cell, perhaps of a run that was "
          "killed. It is measured again where it is needed; the line stays as it is.",
          file=sys.stderr,
        )
    return results, text.endswith("\n") or not text


def _canonical(key: Key) -> str:
  return json.dumps(key, sort_keys=True)


def measure_all(
  args: argparse.Namespace,
  jobs: Iterable[Job],
  settings: Callable[[Draft], Sequence[Setting]],
) -> list[tuple[dict[str, Any], Measured | None]]:
  """Measures the cells that are wanted; each is kept as soon as it is measured.

  Args:
    args: the flags `output` and `recorded`.
    jobs: what is measured.
    settings: returns the settings of a draft's cells.

  Returns:
    A row that names each cell, and the cell; None where nothing was to be measured.
  """
  from tqdm import tqdm  # Accelerators, whose cells are kept too, are without it.

  cells, found = Cells(args.output), []
  for job in jobs:
    study = job.load()
    wanted = [(draft, each) for draft in study.drafts for each in settings(draft)]
    for draft, setting in tqdm(wanted, desc=job.task, unit="cell", file=sys.stderr):
      row = {
        "task": job.task,
        "folder": job.target,
        "draft": draft.name,
        "temperature": setting.temperature,
        "gamma": setting.gamma,
        "lenience": setting.lenience,
      }
      found.append((row, _cell(study, draft, setting, cells, args.recorded)))
  if other := cells.unasked():
    print(
      f"{cells.path} has {other} more cells, of other settings, code or machines; "
      "they are not shown.",
      file=sys.stderr,
    )
  return found


def measure_cell(study: Study, draft: Draft, setting: Setting) -> Measured:
  """Decodes inputs until there are `study.job.num_tokens` tokens, and times the parts.

  Batch 1. Where the setting is timed, every input is also decoded plainly, in turn.
  """
  decode = study.cell(draft, setting)
  ways = {"ours": Way(decode)}
  if setting.timed:
    ways[PLAIN] = Way(study.decode(setting.temperature))
  run = Run(
    lambda temperature, batch: ways,
    study,
    temperatures=(setting.temperature,),
    setting=setting,
    num_tokens=study.job.num_tokens,
  )
  cell = next(measure(run)).cell
  if not setting.timed:
    return cell
  costs = measure_costs(decode, setting.gamma, study.inputs[0], study.job.runs)
  return dataclasses.replace(cell, costs=costs)


def _cell(study, draft, setting, cells, recorded) -> Measured | None:
  # A cell that was timed has the same counts.
  timed = study.key(draft, dataclasses.replace(setting, timed=True))
  result = None if setting.timed else cells.find(timed)
  if result is None:
    result = cells.get(
      study.key(draft, setting),
      lambda: measure_cell(study, draft, setting).to_result(),
      recorded,
    )
  return result and Measured.of(setting, result)
