"""Cells: measurements of a way to decode, kept in a file.

A cell's key has every setting that determines the measurement, with the device, the
versions and a digest of the code. Cells are never removed from the file.
"""

import argparse
import dataclasses
import json
import os
import pathlib
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from benchmarks.costs import measure_costs
from benchmarks.measured import Measured, Setting
from benchmarks.run import PLAIN, Run, Way, measure
from benchmarks.study import Draft, Job, Study

FILE = "cells.jsonl"

Key = Mapping[str, Any]


class Cells:
  """The cells of one folder."""

  def __init__(self, folder: str | os.PathLike):
    self.path = pathlib.Path(folder) / FILE
    self._asked: set[str] = set()
    self._results, self._whole = self._read()

  def find(self, key: Key) -> dict[str, Any] | None:
    """Returns the result with the given key, or None."""
    name = _canonical(key)
    self._asked.add(name)
    return self._results.get(name)

  def add(self, key: Key, result: Mapping[str, Any]) -> None:
    """Adds a result, and writes it to disk before returning."""
    name = _canonical(key)
    line = json.dumps({"key": json.loads(name), "result": result}) + "\n"
    self.path.parent.mkdir(parents=True, exist_ok=True)
    with self.path.open("a", encoding="utf-8") as file:
      # An unfinished line of a killed run stays in the file; the new line comes below.
      file.write(line if self._whole else f"\n{line}")
      file.flush()
      os.fsync(file.fileno())
    self._whole = True
    self._results[name] = json.loads(json.dumps(result))

  def get(
    self, key: Key, measure: Callable[[], Any], recorded: bool = False
  ) -> dict[str, Any] | None:
    """Returns the result with the given key; measures and adds a missing result.

    Args:
      key: every setting that determines the result.
      measure: a function that returns the result, or None if there is no result.
      recorded: whether to return None for a missing result, without a measurement.
    """
    result = self.find(key)
    if result is None and not recorded and (measured := measure()) is not None:
      self.add(key, measured)
      result = self.find(key)
    return result

  def take(self, folder: str | os.PathLike) -> None:
    """Adds the missing cells from another folder.

    Raises:
      ValueError: if the other folder has no cells.
    """
    other = Cells(folder)
    if not other.path.exists():
      raise ValueError(
        f"Expected {FILE} in the folder of --resume, got {os.fspath(folder)!r} without "
        f"{FILE}. Give the --output of an earlier run."
      )
    for name in other._results.keys() - self._results.keys():
      self.add(json.loads(name), other._results[name])

  def unasked(self) -> int:
    """Returns the number of cells without a `find` call; 0 if `find` was not called."""
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
          f"{self.path}, line {number}: not a complete cell, perhaps because the run "
          "was killed. The cell is measured again if needed; the line is kept.",
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
  """Measures all cells of some jobs; each cell is kept at once.

  Args:
    args: the flags `output` and `recorded`.
    jobs: the jobs.
    settings: a function from a draft to the settings of the draft's cells.

  Returns:
    A row with the names of each cell, and the cell; None if `recorded` and not kept.
  """
  # Machines with accelerators also use this module, and may lack tqdm.
  from tqdm import tqdm

  cells = Cells(args.output)
  rows = []
  for job in jobs:
    study = job.load()
    pairs = [(draft, setting) for draft in study.drafts for setting in settings(draft)]
    for draft, setting in tqdm(pairs, desc=job.task, unit="cell", file=sys.stderr):
      row = {
        "task": job.task,
        "folder": job.target,
        "draft": draft.name,
        "temperature": setting.temperature,
        "gamma": setting.gamma,
        "lenience": setting.lenience,
      }
      rows.append((row, _cell(study, draft, setting, cells, args.recorded)))
  if other := cells.unasked():
    print(
      f"{cells.path} has {other} more cells, of other settings, code or machines; the "
      "cells are not shown.",
      file=sys.stderr,
    )
  return rows


def measure_cell(study: Study, draft: Draft, setting: Setting) -> Measured:
  """Decodes inputs at batch 1 up to `study.job.num_tokens` tokens, and times the parts.

  If the setting is timed, plain decoding of every input runs in turn.
  """
  decode = study.cell(draft, setting)
  ways = {"ours": Way(decode)}
  if setting.timed:
    ways[PLAIN] = Way(study.decode(setting.temperature))
  num_tokens = study.job.num_tokens
  run = Run(lambda *_: ways, study, setting=setting, num_tokens=num_tokens)
  cell = next(measure(run)).cell
  if not setting.timed:
    return cell
  costs = measure_costs(decode, setting.gamma, study.inputs[0], study.job.runs)
  return dataclasses.replace(cell, costs=costs)


def _cell(study, draft, setting, cells, recorded) -> Measured | None:
  # A timed cell has the same counts as a counted cell.
  timed = study.key(draft, dataclasses.replace(setting, timed=True))
  result = None if setting.timed else cells.find(timed)
  if result is None:
    result = cells.get(
      study.key(draft, setting),
      lambda: measure_cell(study, draft, setting).to_result(),
      recorded,
    )
  return result and Measured.of(setting, result)
