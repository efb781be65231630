"""The paper's own numbers, as printed (paper.json)."""

import functools
import json
from collections.abc import Callable, Mapping, Sequence
from importlib import resources
from typing import Any

from specdec_t5x.analysis import theory
from specdec_t5x.bench.table import Column, Table

NOT_IN_PAPER = "-"
# Half a unit of the last digit that table 4 prints.
_HALF_A_TENTH = 0.05

Row = Mapping[str, Any]


@functools.cache
def numbers() -> Mapping[str, Any]:
  """Returns the tables by name, each a list of rows, and their "source"."""
  file = resources.files("specdec_t5x.bench.paper") / "paper.json"
  return json.loads(file.read_text(encoding="utf-8"))


def theorem(row: Row) -> float:
  """Returns theorem 3.8 at the alpha, gamma and c of a row of table 4."""
  return float(theory.walltime_improvement(row["alpha"], row["gamma"], row["c"]))


def follows(row: Row) -> bool:
  """Returns whether the printed "expected" is theorem 3.8 at the printed alpha and c.

  Three of table 4's twelve are not, by rounding of alpha and c or otherwise: see
  docs/math.md.
  """
  return abs(theorem(row) - row["expected"]) <= _HALF_A_TENTH


def beside(
  ours: Sequence[Row],
  printed: Sequence[Row],
  names: Sequence[str],
  show: Callable[[Row], Row],
  *,
  preset: str | None,
) -> list[dict[str, Any]]:
  """Returns our rows, each with the paper's of the same models, then its others.

  Args:
    ours: our rows.
    printed: the paper's.
    names: columns that tell a row's models and setting from others'.
    show: the columns made of one of the paper's rows; ours have precedence.
    preset: the demo's models are others than the paper's, whatever their names.
  """
  name = lambda row: tuple(row[column] for column in names)
  others = {name(row): row for row in printed}
  rows = []
  for row in ours:
    same = None if preset == "demo" else others.pop(name(row), None)
    rows.append({**(show(same) if same else {}), **row})
  rows += [{**{n: row[n] for n in names}, **show(row)} for row in others.values()]
  text = lambda row: {n: f"{row[n]:g}" for n in ("temperature", "lenience") if n in row}
  return [{**row, **text(row)} for row in rows]


def table(
  name: str,
  title: str,
  columns: Sequence[Column],
  rows: Sequence[Row],
  notes: Sequence[str] = (),
  settings: Row | None = None,
  **kwargs,
) -> Table:
  """Returns a table that says where the paper's numbers are from; `Table`'s fields."""
  facts = {"paper": numbers()["source"]}
  return Table(name, title, columns, rows, notes, settings or {}, facts, **kwargs)
