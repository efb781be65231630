"""Cells: measurements of a way to decode, kept in files.

A cell's key has every setting that determines the measurement, with the device, the
versions and a digest of the code. Cells are never removed.
"""

import argparse
import dataclasses
import hashlib
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


class Cells:
  """The cells of one folder, each in a file whose name is a digest of the key."""

  def __init__(self, folder: str | os.PathLike):
    self.folder = pathlib.Path(folder) / "cells"

  def find(self, key: Mapping[str, Any]) -> dict[str, Any] | None:
    """Returns the result with the given key, or None."""
    path = self._path(key)
    return json.loads(path.read_text("utf-8"))["result"] if path.exists() else None

  def add(self, key: Mapping[str, Any], result: Mapping[str, Any]) -> None:
    """Adds a result, and writes it to disk before returning."""
    path = self._path(key)
    path.parent.mkdir(parents=True, exist_ok=True)
    # The file gets its name when complete, so a killed run leaves no half of a cell.
    part = path.with_suffix(".part")
    with part.open("w", encoding="utf-8") as file:
      json.dump({"key": key, "result": result}, file, indent=1)
      file.flush()
      os.fsync(file.fileno())
    part.replace(path)

  def get(self, key: Mapping[str, Any], measure: Callable[[], Any]) -> dict[str, Any]:
    """Returns the result with the given key; measures and adds a missing result."""
    if self.find(key) is None:
      self.add(key, measure())
    return self.find(key)

  def _path(self, key: Mapping[str, Any]) -> pathlib.Path:
    text = json.dumps(key, sort_keys=True)
    return self.folder / f"{hashlib.sha256(text.encode()).hexdigest()[:32]}.json"


def measure_all(
  args: argparse.Namespace,
  job: Job,
  settings: Callable[[Draft], Sequence[Setting]],
) -> list[tuple[dict[str, Any], Measured]]:
  """Measures the cells of a draft's settings for each draft; each cell is kept at once.

  Returns a row with the names of each cell, and the cell.
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
