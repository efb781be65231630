"""Measured points for the curves: the rows of a table2.json or table4.json."""

import json
from collections.abc import Mapping
from typing import Any

from etils import epath


def read(path: str | None) -> list[dict[str, Any]]:
  """Returns the measured rows of a table's JSON; none where `path` is None.

  Returns:
    Of each cell what it is "of", its "alpha", "gamma", "c", "tokens" an iteration,
    "speed" of the median input and "operations" of the target, as with c_hat = 0.

  Raises:
    ValueError: where the file is no such table, or has no measured row.
  """
  if path is None:
    return []
  try:
    document = json.loads(epath.Path(path).read_text())
    device = document["environment"]["device"]
    points = [_point(row, device) for row in document["rows"] if row.get("alpha")]
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


def _point(row: Mapping[str, Any], device: str) -> dict[str, Any]:
  tokens, gamma = row["tokens_per_call"]["value"], row["gamma"]
  label = f"{row['draft']}, {row['task']}, T={row['temperature']}"
  return {
    "of": f"measured: {label} ({device})",
    "alpha": row["alpha"]["value"],
    "gamma": gamma,
    "c": row["c"],
    "tokens": tokens,
    "speed": row["speed"]["median"],
    # What the target scores over what is kept.
    "operations": (gamma + 1) / tokens,
  }
