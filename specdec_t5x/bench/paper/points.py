"""Measured points for the curves: the rows of a table2.json or table4.json."""

import dataclasses
import json
import pathlib
from collections.abc import Mapping
from typing import Any


@dataclasses.dataclass(frozen=True)
class Point:
  """A measured cell.

  Attributes:
    label: draft, task and temperature.
    alpha: its acceptance.
    gamma: tokens drafted a call.
    c: draft step time / target step time.
    tokens_per_call: of the target.
    speed: measured speed-up, median input.
    device: it was measured on.
  """

  label: str
  alpha: float
  gamma: int
  c: float
  tokens_per_call: float
  speed: float
  device: str


def read(path: str | None) -> list[Point]:
  """Returns the measured rows of a table's JSON; none where `path` is None.

  Raises:
    ValueError: where the file is no such table, or has no measured row.
  """
  if path is None:
    return []
  try:
    document = json.loads(pathlib.Path(path).read_text(encoding="utf-8"))
    device = document["environment"]["device"]
    rows = [row for row in document["rows"] if row.get("alpha")]
    points = [_point(row, device) for row in rows]
  except (OSError, ValueError, KeyError, TypeError) as error:
    raise ValueError(
      f"--points: {path!r} can't be read ({type(error).__name__}: {error}). Expected "
      "the table2.json or table4.json that `python -m specdec_t5x.bench` table2 or "
      "table4 writes."
    ) from error
  if not points:
    raise ValueError(
      f"--points: {path!r} has no measured row. Run the table's command first."
    )
  return points


def _point(row: Mapping[str, Any], device: str) -> Point:
  return Point(
    label=f"{row['draft']}, {row['task']}, T={row['temperature']}",
    alpha=row["alpha"]["value"],
    gamma=row["gamma"],
    c=row["c"],
    tokens_per_call=row["tokens_per_call"]["value"],
    # Table 2 calls it speed, table 4 measured.
    speed=(row.get("speed") or row["measured"])["median"],
    device=device,
  )
