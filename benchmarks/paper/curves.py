"""Figures 2, 3 and 4 of the paper: theory for every alpha, with points on the curves.

  python -m benchmarks figure2 --points DIR/table4.json --output DIR

Figure 2 shows the expected tokens per iteration, figure 3 the best gamma, and figure 4
speed-up and operations. The figures need the extra `reproduce` (matplotlib).
"""

import functools
import json
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from etils import epath

from benchmarks import plotting
from benchmarks.command import Command
from benchmarks.paper import published
from benchmarks.table import Table, render
from specdec_t5x.analysis import theory

_ALPHAS = np.linspace(0.0, 0.99, 100)
_MOST = 30  # The largest gamma of figure 3.


def _tokens(args, gamma: int) -> dict[str, np.ndarray]:
  """Returns figure 2: mean tokens per iteration against alpha."""
  del args
  return {"tokens": theory.expected_tokens(_ALPHAS, gamma)}


def _best_gammas(args, c: float) -> dict[str, np.ndarray]:
  """Returns figure 3: the best gamma against alpha."""
  del args
  gammas = theory.optimal_gamma(_ALPHAS, c, max_gamma=_MOST)
  return {"gamma": gammas.astype(int)}


def _speeds(args, gamma: int) -> dict[str, np.ndarray]:
  """Returns figure 4: speed-up and operations against alpha."""
  return {
    "speed": theory.walltime_improvement(_ALPHAS, gamma, args.c),
    "operations": theory.operations_factor(_ALPHAS, gamma, args.c_hat),
  }


def _make(name: str, by: str, curve: Callable, args) -> Table:
  """Returns curves for each gamma or c, the paper's points, and measured points."""
  rows = []
  for value in args.costs if by == "c" else args.gammas:
    columns = curve(args, value)
    for i, alpha in enumerate(_ALPHAS.tolist()):
      numbers = {key: column[i].item() for key, column in columns.items()}
      hidden = {"hidden": round(100 * alpha) % 10 != 0}
      rows.append({"of": "theory", by: value, "alpha": alpha, **numbers, **hidden})
  points = _read_points(args.points)
  if name == "figure3":
    rows += _printed("tables_2_and_4", "table 2")
    # Only the fastest gamma of each draft, task and temperature has a point.
    points.sort(key=lambda point: point["speed"])
    points = list({point["of"]: point for point in points}.values())
  elif name == "figure2":
    # With c = 0 the speed is equation 1.
    rows += [{**row, "tokens": row["speed"]} for row in _printed("table1", "table 1")]
  else:
    rows += _printed("table1", "table 1 (c = c_hat = 0)")
  facts = {"paper": published.numbers()["source"]}
  return render(name, rows + points, {**vars(args), "most": _MOST}, facts=facts)


def _printed(name, called):
  return [{**row, "of": f"paper, {called}"} for row in published.numbers()[name]]


def _read_points(path: str | None) -> list[dict[str, Any]]:
  """Returns a point for each measured row of a table's JSON; none if `path` is None."""
  if path is None:
    return []
  try:
    document = json.loads(epath.Path(path).read_text())
    device = document["environment"]["device"]
    points = [_point(row, device) for row in document["rows"] if row.get("alpha")]
  except (OSError, ValueError, KeyError, TypeError) as error:
    raise ValueError(
      f"--points: {path!r} can't be read ({type(error).__name__}: {error}). Expected "
      "table2.json or table4.json, as written by `python -m benchmarks` table2 "
      "or table4."
    ) from error
  if not points:
    raise ValueError(
      f"--points: {path!r} has no measured row. Run the table's command first."
    )
  return points


def _point(row: Mapping[str, Any], device: str) -> dict[str, Any]:
  tokens = row["tokens_per_call"]["value"]
  gamma = row["gamma"]
  label = f"{row['draft']}, {row['task']}, T={row['temperature']}"
  return {
    "of": f"measured: {label} ({device})",
    "alpha": row["alpha"]["value"],
    "gamma": gamma,
    "c": row["c"],
    "tokens": tokens,
    "speed": row["speed"]["median"],
    # The target's scored tokens over the output tokens.
    "operations": (gamma + 1) / tokens,
  }


def _draw(by: str, panels: Mapping[str, str], table: Table) -> Any:
  """Returns the figure, with a panel for each column of `panels`."""
  figure, axes = plotting.new_figure(5.2 * len(panels), 4.2, len(panels))
  curves = {}
  for row in table.rows:
    if row["of"] == "theory":
      curves.setdefault(row[by], []).append(row)
  colors = {value: f"C{i % 10}" for i, value in enumerate(curves)}
  for axis, (column, label) in zip(axes, panels.items(), strict=True):
    for value, rows in curves.items():
      numbers = [row[column] for row in rows]
      axis.plot(_ALPHAS, numbers, color=colors[value], label=f"{by} = {value:g}")
    for row in table.rows:
      if row["of"] != "theory":
        # A point has the colour of the curve with the same gamma or c, else white.
        _mark(axis, row, column, colors.get(row[by], "white"))
    axis.set(xlabel="alpha", ylabel=label)
  axes[0].legend(fontsize=7)
  figure.suptitle(table.title, fontsize=10)
  return figure


def _mark(axis, row, column, color):
  ours = row["of"].startswith("measured")
  kind = "measured" if ours else row["of"]
  labels = axis.get_legend_handles_labels()[1]
  axis.plot(
    row["alpha"],
    row[column],
    "*" if ours else "o",
    markersize=10 if ours else 5,
    markerfacecolor=color,
    markeredgecolor="black",
    label=None if kind in labels else kind,
  )


def _figure(name, curve, by, flags, panels) -> Command:
  """Returns a figure's command."""
  points = "a table2.json or table4.json, to draw the measured rows, too"
  return Command(
    __doc__,
    functools.partial(_make, name, by, curve),
    {**flags, "points": (str, points)},
    output=published.OUTPUT,
    draw=functools.partial(_draw, by, panels),
    is_figure=True,
  )


_GAMMAS = {"gammas": [1, 2, 3, 5, 7, 10]}
_COSTS = {"costs": ([0.01, 0.02, 0.04, 0.11, 0.2], "c")}
_FACTORS = {"c": (0.0, "of the speed-up"), "c_hat": (0.0, "of the operations")}
_OF_SPEEDS = {"speed": "speed-up", "operations": "times the operations"}
FIGURE_2 = _figure(
  "figure2", _tokens, "gamma", _GAMMAS, {"tokens": "expected tokens an iteration"}
)
FIGURE_3 = _figure("figure3", _best_gammas, "c", _COSTS, {"gamma": "best gamma"})
FIGURE_4 = _figure("figure4", _speeds, "gamma", _GAMMAS | _FACTORS, _OF_SPEEDS)
