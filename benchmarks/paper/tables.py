"""Tables 1 to 5 of the paper with our numbers; tables.toml describes each table."""

import argparse
import functools
from typing import Any

from benchmarks import jobs
from benchmarks.cells import measure_all
from benchmarks.measure import Setting
from benchmarks.paper import published
from benchmarks.study import Draft
from benchmarks.table import Table, declared, render
from specdec_t5x.core import theory
from specdec_t5x.demo import embedded

# Half a unit of the last digit that table 1 prints.
_HALF_A_HUNDREDTH = 0.005


def make(name: str, args: argparse.Namespace) -> Table:
  """Measures every cell of a table that the flags request; table 1 is theory."""
  if name == "table1":
    return _theory()
  job = jobs.from_flags(args)
  cells = measure_all(args, job, functools.partial(_settings, name, args))
  ours = [{**row, **cell.row()} for row, cell in cells]
  if name == "table2":
    ours = _fastest(ours)
  same_models = job.target != embedded.target()
  sizes = {row["task"]: cell.inputs for row, cell in cells}
  models = {"target": job.target, **job.drafts}
  return render(
    name,
    published.beside(ours, declared(name), same_models=same_models),
    settings={**vars(args), "models": models, "inputs": sizes},
    facts={"paper": published.numbers()["source"]},
  )


def _theory() -> Table:
  """Returns table 1, which needs no measurement: c = c_hat = 0."""
  rows = []
  for row in published.numbers()["table1"]:
    operations = float(theory.operations_factor(row["alpha"], row["gamma"], 0))
    speed = float(theory.walltime_improvement(row["alpha"], row["gamma"], 0))
    off = max(abs(operations - row["operations"]), abs(speed - row["speed"]))
    ours = {
      "paper_operations": row["operations"],
      "operations": operations,
      "paper_speed": row["speed"],
      "speed": speed,
      "agrees": "yes" if off <= _HALF_A_HUNDREDTH else "no",
    }
    rows.append({**row, **ours})
  return render("table1", rows, facts={"paper": published.numbers()["source"]})


def _fastest(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
  """Returns the row of the fastest gamma of each draft and temperature."""
  groups = {}
  for row in rows:
    groups.setdefault((row["draft"], row["temperature"]), []).append(row)
  fastest = []
  for group in groups.values():
    gammas = " ".join(str(row["gamma"]) for row in group)
    best = max(group, key=lambda row: row["speed"].median)
    fastest.append({**best, "gammas": gammas})
  return fastest


def _settings(name: str, args: argparse.Namespace, draft: Draft) -> list[Setting]:
  """Returns the settings of a draft's cells."""
  if name in ("table2", "table4"):
    return [Setting(gamma, t) for t in args.temperatures for gamma in args.gammas]
  if name == "table3":
    return [Setting(args.gamma, t, timed=False) for t in args.temperatures]
  settings = [Setting(args.gamma, 1.0, value, timed=False) for value in args.leniences]
  if draft.drafter == "draft_model":
    # The paper's greedy row has a draft model. Lenience does not speed up n-grams.
    settings += [Setting(args.greedy_gamma, 0.0, value) for value in args.leniences]
  return settings
