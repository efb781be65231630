"""The paper's printed numbers (paper.json)."""

import functools
import json
from collections.abc import Mapping, Sequence
from importlib import resources
from typing import Any

from specdec_t5x.core import theory

_HALF_A_TENTH = 0.05  # Half a unit of the last digit that table 4 prints.

Row = Mapping[str, Any]


@functools.cache
def numbers() -> Mapping[str, Any]:
  """Returns the rows of each table by name, and the tables' "source"."""
  file = resources.files("benchmarks.paper") / "paper.json"
  return json.loads(file.read_text(encoding="utf-8"))


def theorem(row: Row) -> float:
  """Returns theorem 3.8 at the alpha, gamma and c of a row of table 4."""
  return float(theory.walltime_improvement(row["alpha"], row["gamma"], row["c"]))


def follows(row: Row) -> bool:
  """Returns whether the printed "expected" is theorem 3.8 at the printed alpha and c.

  Three of table 4's twelve values are not, due to rounding of alpha and c or for other
  reasons: see docs/math.md.
  """
  return abs(theorem(row) - row["expected"]) <= _HALF_A_TENTH


def beside(ours: Sequence[Row], table: Row, *, same_models: bool) -> list[dict]:
  """Returns our rows, each with the paper's row of the same models.

  The paper's other rows follow and are hidden, as no row of ours matches.
  """
  others = {}
  for row in (row for name in table["printed"] for row in numbers()[name]):
    named = {column: row[column] for column in table["by"]}
    if "expected" in row:
      verdict = "yes" if follows(row) else "NO"
      row = {**row, "theorem": theorem(row), "follows": verdict}
    shown = {key: row.get(column) for key, column in table["paper"].items()}
    others[tuple(named.values())] = {**named, **shown}
  rows = []
  for row in ours:
    key = tuple(row[column] for column in table["by"])
    rows.append({**(others.pop(key, {}) if same_models else {}), **row})
  rows += [{**row, "hidden": True} for row in others.values()]
  for row in rows:
    for column in {"temperature", "lenience"} & row.keys():
      row[column] = f"{row[column]:g}"
  return rows
