"""Figures 2, 3 and 4 of the paper: theory for every alpha, with points on the curves.

  python -m specdec_t5x.bench figure2 --points DIR/table4.json --output DIR

2: expected tokens an iteration; 3: the best gamma; 4: speed-up and operations. Need the
extra `reproduce` (matplotlib).
"""

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from etils import epath

from specdec_t5x.analysis import theory
from specdec_t5x.bench import plotting
from specdec_t5x.bench.command import Command
from specdec_t5x.bench.paper import published
from specdec_t5x.bench.table import Table, render

_ALPHAS = np.linspace(0.0, 0.99, 100)
_MOST = 30  # Figure 3: the longest draft that is tried.


def _tokens(args) -> Table:
  """Returns figure 2: mean tokens an iteration against alpha, a curve a gamma."""
  curve = lambda gamma: {"tokens": theory.expected_tokens(_ALPHAS, gamma)}
  # With c = 0 the speed is equation 1.
  printed = [{**row, "tokens": row["speed"]} for row in _printed("table1")]
  rows = [*_curves("gamma", args.gammas, curve), *printed, *read_points(args.points)]
  return _table("figure2", rows)


def _best_gammas(args) -> Table:
  """Returns figure 3: the best gamma against alpha, a curve a c."""
  best = lambda c: theory.optimal_gamma(_ALPHAS, c, max_gamma=_MOST).astype(int)
  curves = _curves("c", args.costs, lambda c: {"gamma": best(c)})
  # The fastest gamma's point of each draft, task and temperature.
  found = sorted(read_points(args.points), key=lambda point: point["speed"])
  fastest = {point["of"]: point for point in found}
  rows = [*curves, *_printed("tables_2_and_4", "table 2"), *fastest.values()]
  return _table("figure3", rows, {"most": _MOST})


def _speeds(args) -> Table:
  """Returns figure 4: speed-up and operations against alpha, a curve a gamma."""
  curve = lambda gamma: {
    "speed": theory.walltime_improvement(_ALPHAS, gamma, args.c),
    "operations": theory.operations_factor(_ALPHAS, gamma, args.c_hat),
  }
  printed = _printed("table1", "table 1 (c = c_hat = 0)")
  rows = [*_curves("gamma", args.gammas, curve), *printed, *read_points(args.points)]
  return _table("figure4", rows, vars(args))


def _curves(name: str, values: Sequence, curve: Callable) -> list[dict]:
  rows = []
  for value in values:
    found = curve(value)
    for i, alpha in enumerate(_ALPHAS):
      numbers = {key: column[i].item() for key, column in found.items()}
      row = {"of": "theory", name: value, "alpha": float(alpha), **numbers}
      rows.append(row | {"hidden": round(100 * alpha) % 10 != 0})
  return rows


def _printed(name, called="table 1"):
  return [{**row, "of": f"paper, {called}"} for row in published.numbers()[name]]


def _table(name, rows, words=None):
  return render(name, rows, words, facts={"paper": published.numbers()["source"]})


def read_points(path: str | None) -> list[dict[str, Any]]:
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


def _figure(make, flags, by, panels) -> Command:
  """Returns a figure's command."""

  def draw(table):
    figure, axes = plotting.new_figure(5.2 * len(panels), 4.2, len(panels))
    theory_rows = [row for row in table.rows if row["of"] == "theory"]
    values = list(dict.fromkeys(row[by] for row in theory_rows))
    colors = {value: f"C{i % 10}" for i, value in enumerate(values)}
    for axis, (column, label) in zip(axes, panels, strict=True):
      for value in values:
        curve = [row for row in theory_rows if row[by] == value]
        xs, ys = [r["alpha"] for r in curve], [r[column] for r in curve]
        axis.plot(xs, ys, color=colors[value], label=f"{by} = {value:g}")
      _draw_marks(axis, table.rows, column, by, colors)
      axis.set(xlabel="alpha", ylabel=label)
    axes[0].legend(fontsize=7)
    figure.suptitle(table.title, fontsize=10)
    return figure

  how = {"output": published.OUTPUT, "draw": draw, "is_figure": True}
  return Command(__doc__, make, flags | _POINTS, **how)


def _draw_marks(axis, rows, column, by, colors):
  for row in (row for row in rows if row["of"] != "theory"):
    ours = row["of"].startswith("measured")
    kind = "measured" if ours else row["of"]
    known = axis.get_legend_handles_labels()[1]
    # The colour of its curve; black where no curve is drawn for its gamma or c.
    axis.plot(
      row["alpha"],
      row[column],
      "*" if ours else "o",
      markersize=10 if ours else 5,
      markerfacecolor=colors.get(row[by], "white"),
      markeredgecolor="black",
      label=None if kind in known else kind,
    )


_POINTS = {
  "points": (str, "a table2.json or table4.json: its measured rows are drawn too")
}
_GAMMAS = {"gammas": [1, 2, 3, 5, 7, 10]}
_OF_SPEEDS = {"c": (0.0, "of the speed-up"), "c_hat": (0.0, "of the operations")}
FIGURE_2 = _figure(
  _tokens, _GAMMAS, "gamma", [("tokens", "expected tokens an iteration")]
)
FIGURE_3 = _figure(
  _best_gammas,
  {"costs": ([0.01, 0.02, 0.04, 0.11, 0.2], "c")},
  "c",
  [("gamma", "best gamma")],
)
FIGURE_4 = _figure(
  _speeds,
  _GAMMAS | _OF_SPEEDS,
  "gamma",
  [("speed", "speed-up"), ("operations", "times the operations")],
)
