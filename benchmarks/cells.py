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
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import numpy as np

from benchmarks.measure import PLAIN, Measured, Run, Setting, Way, measure
from benchmarks.study import BATCH, Draft, Job, Study
from benchmarks.timed import Costs

Key = Mapping[str, Any]


class Cells:
  """The cells of one folder."""

  def __init__(self, folder: str | os.PathLike):
    self.path = pathlib.Path(folder) / "cells.jsonl"
    self._results, self._is_whole = self._read()

  def find(self, key: Key) -> dict[str, Any] | None:
    """Returns the result with the given key, or None."""
    return self._results.get(json.dumps(key, sort_keys=True))

  def add(self, key: Key, result: Mapping[str, Any]) -> None:
    """Adds a result, and writes it to disk before returning."""
    name = json.dumps(key, sort_keys=True)
    line = json.dumps({"key": json.loads(name), "result": result}) + "\n"
    self.path.parent.mkdir(parents=True, exist_ok=True)
    with self.path.open("a", encoding="utf-8") as file:
      # An unfinished line of a killed run stays in the file; the new line comes below.
      file.write(line if self._is_whole else f"\n{line}")
      file.flush()
      os.fsync(file.fileno())
    self._is_whole = True
    self._results[name] = json.loads(json.dumps(result))

  def get(self, key: Key, measure: Callable[[], Any]) -> dict[str, Any]:
    """Returns the result with the given key; measures and adds a missing result."""
    if self.find(key) is None:
      self.add(key, measure())
    return self.find(key)

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
        results[json.dumps(cell["key"], sort_keys=True)] = cell["result"]
      except (ValueError, KeyError, TypeError):
        print(
          f"{self.path}, line {number}: not a complete cell, perhaps because the run "
          "was killed. The cell is measured again if needed; the line is kept.",
          file=sys.stderr,
        )
    return results, text.endswith("\n") or not text


def measure_all(
  args: argparse.Namespace,
  job: Job,
  settings: Callable[[Draft], Sequence[Setting]],
) -> list[tuple[dict[str, Any], Measured]]:
  """Measures the cells of a draft's settings for each draft; each cell is kept at once.

  Returns:
    A row with the names of each cell, and the cell.
  """
  # Machines with accelerators also use this module, and may lack tqdm.
  from tqdm import tqdm

  cells = Cells(args.output)
  study = job.load()
  size = sum(leaf.size for leaf in jax.tree.leaves(study.target.params))
  names = {"task": job.task, "target": f"ours, {size / 1e6:.1f}M parameters"}
  pairs = [(draft, setting) for draft in study.drafts for setting in settings(draft)]
  rows = []
  for draft, setting in tqdm(pairs, desc=job.task, unit="cell", file=sys.stderr):

    def run(draft=draft, setting=setting):
      cell = measure_cell(study, draft, setting)
      columns = {name: values.tolist() for name, values in cell.columns.items()}
      return {"columns": columns, "costs": cell.costs and vars(cell.costs)}

    # A timed cell has the same counts as a counted cell.
    timed = study.key(draft, dataclasses.replace(setting, timed=True))
    result = cells.find(timed) or cells.get(study.key(draft, setting), run)
    columns = {name: np.array(values) for name, values in result["columns"].items()}
    costs = result["costs"] and Costs(**result["costs"])
    row = {**names, "draft": draft.name, **dataclasses.asdict(setting)}
    rows.append((row, Measured(setting, columns, costs)))
  return rows


def measure_cell(study: Study, draft: Draft, setting: Setting) -> Measured:
  """Returns a new cell.

  A timed cell decodes inputs at batch 1 up to `study.job.num_tokens` tokens, in turn
  with plain decoding, and times the parts. Another cell counts on all inputs.
  """
  decode = study.cell(draft, setting)
  batch = 1 if setting.timed else BATCH
  ways = {"ours": Way(study.grouped(decode, batch))}
  if setting.timed:
    ways[PLAIN] = Way(study.grouped(study.decode(setting.temperature), batch))
  run = Run(
    lambda *_: ways,
    study.groups,
    batches=[batch],
    setting=setting,
    num_tokens=study.job.num_tokens if setting.timed else None,
  )
  cell = next(measure(run)).cell
  if not setting.timed:
    return cell
  costs = study.costs({"ours": decode}, study.job.runs)["ours"]
  return dataclasses.replace(cell, costs=costs)
