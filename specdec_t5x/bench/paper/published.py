"""The paper's own numbers, as printed (paper.json)."""

import functools
import json
from collections.abc import Mapping
from importlib import resources
from typing import Any

from specdec_t5x.analysis import theory

# Half a unit of the last digit that table 4 prints.
_HALF_A_TENTH = 0.05


@functools.cache
def numbers() -> Mapping[str, Any]:
  """Returns the tables by name, each a list of rows, and their "source"."""
  file = resources.files("specdec_t5x.bench.paper") / "paper.json"
  return json.loads(file.read_text(encoding="utf-8"))


def theorem(row: Mapping[str, Any]) -> float:
  """Returns theorem 3.8 at the alpha, gamma and c of a row of table 4."""
  return float(theory.walltime_improvement(row["alpha"], row["gamma"], row["c"]))


def follows(row: Mapping[str, Any]) -> bool:
  """Returns whether the printed "expected" is theorem 3.8 at the printed alpha and c.

  Three of table 4's twelve are not, by rounding of alpha and c or otherwise: see
  docs/math.md.
  """
  return abs(theorem(row) - row["expected"]) <= _HALF_A_TENTH
