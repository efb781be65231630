"""Tables 1 to 5 of the paper with our numbers; tables.toml describes each table."""

import argparse
import functools
from collections.abc import Callable, Sequence
from typing import Any

from benchmarks import jobs
from benchmarks.cells import measure_all
from benchmarks.command import Command
from benchmarks.measured import Measured, Setting
from benchmarks.paper import published
from benchmarks.study import Draft
from benchmarks.table import Table, declared, render
from specdec_t5x.analysis import theory
from specdec_t5x.drafters.draft_model import DEFAULT_GAMMA

# The end of each table's --help.
_USAGE = """

  %(prog)s --preset demo --output DIR
  %(prog)s --preset paper --tasks ende --target DIR \\
    --draft T5-small=DIR T5-base=DIR T5-large=DIR --tfds-data-dir DIR --output DIR
  %(prog)s --target DIR --draft NAME=DIR --vocabulary FILE \\
    --inputs FILE --prefix "translate English to German: " --output DIR

Each cell is kept in DIR/cells.jsonl as soon as it is measured: a run that was stopped
goes on where it was, and tables share their cells. Leave all cores to it.
"""
# Half a unit of the last digit that table 1 prints.
_HALF_A_HUNDREDTH = 0.005
_TEMPERATURES, _GAMMAS = [0.0, 1.0], [1, 3, 5, 7, 10]

SettingsFn = Callable[[argparse.Namespace, Draft], Sequence[Setting]]


def _theory(args: argparse.Namespace) -> Table:
  """Returns table 1, which needs no measurement."""
  del args
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


def _measured(name: str, settings: SettingsFn, args: argparse.Namespace) -> Table:
  """Measures every cell of a table that the flags request.

  Raises:
    ValueError: if a flag is bad, or if a flag's file or folder is missing.
  """
  cells = measure_all(args, jobs.from_flags(args), functools.partial(settings, args))
  sizes = {row["task"]: cell.inputs for row, cell in cells if cell}
  ours = [{**row, **(cell.row() if cell else {})} for row, cell in cells]
  if name == "table2":
    ours = _fastest(cells)
  same_models = jobs.preset(args) != jobs.DEMO
  rows = published.beside(ours, declared(name), same_models=same_models)
  return render(
    name,
    [{"target": row.get("folder"), **row} for row in rows],
    notes=tuple(published.exceptions()) if name == "table4" else (),
    settings={**vars(args), **jobs.known(args), "inputs": sizes},
    facts={"paper": published.numbers()["source"]},
  )


def _fastest(
  cells: Sequence[tuple[dict[str, Any], Measured | None]],
) -> list[dict[str, Any]]:
  """Returns the row of the fastest gamma of each task, draft and temperature."""
  groups = {}
  for row, cell in cells:
    key = tuple(row[name] for name in ("task", "draft", "temperature"))
    groups.setdefault(key, []).append((row, cell))
  rows = []
  for group in groups.values():
    first = {**group[0][0], "gamma": None}
    measured = {row["gamma"]: cell for row, cell in group if cell}
    if measured:
      gamma = max(measured, key=lambda gamma: measured[gamma].speedup.median)
      gammas = {"gamma": gamma, "gammas": " ".join(map(str, measured))}
      first |= {**measured[gamma].row(), **gammas}
    rows.append(first)
  return rows


def _speeds(args, draft: Draft) -> list[Setting]:
  del draft
  return [Setting(gamma, t) for t in args.temperatures for gamma in args.gammas]


def _alphas(args, draft: Draft) -> list[Setting]:
  del draft
  return [Setting(args.gamma, t, timed=False) for t in args.temperatures]


def _leniences(args, draft: Draft) -> list[Setting]:
  settings = [Setting(args.gamma, 1.0, value, timed=False) for value in args.leniences]
  if draft.drafter == "draft_model":
    # The paper's greedy row has a draft model. Lenience does not speed up n-grams.
    settings += [Setting(args.greedy_gamma, 0.0, value) for value in args.leniences]
  return settings


def _command(name, settings, flags, tables=False) -> Command:
  return Command(
    declared(name)["about"] + _USAGE,
    functools.partial(_measured, name, settings),
    {**jobs.PAIRS, **flags, **jobs.CELLS},
    {"tables": tables},
    published.OUTPUT,
  )


TABLE_1 = Command(
  declared("table1")["about"]
  + "\n\n  %(prog)s --output DIR\n\nMeasures nothing: c = c_hat = 0.",
  _theory,
  output=published.OUTPUT,
)
_OF_SPEEDS = {"temperatures": _TEMPERATURES, "gammas": _GAMMAS}
_OF_ALPHAS = {"temperatures": _TEMPERATURES, "gamma": DEFAULT_GAMMA}
_OF_LENIENCES = {
  "leniences": [1.0, 0.5, 0.3, 0.1],
  "gamma": (DEFAULT_GAMMA, "at T=1"),
  "greedy_gamma": (8, "at T=0, timed"),
}
TABLE_2 = _command("table2", _speeds, _OF_SPEEDS)
TABLE_3 = _command("table3", _alphas, _OF_ALPHAS, tables=True)
TABLE_4 = _command("table4", _speeds, _OF_SPEEDS)
TABLE_5 = _command("table5", _leniences, _OF_LENIENCES, tables=True)
