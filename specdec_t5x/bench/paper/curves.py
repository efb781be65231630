"""Figures 2, 3 and 4 of the paper: theory for every alpha, with points on the curves.

  python -m specdec_t5x.bench figure2 --points DIR/table4.json --output DIR

2: expected tokens an iteration; 3: the best gamma; 4: speed-up and operations. Need the
extra `reproduce` (matplotlib).
"""

import argparse
import dataclasses
from collections.abc import Callable, Sequence

import numpy as np

from specdec_t5x.analysis import theory
from specdec_t5x.bench.command import Command
from specdec_t5x.bench.flags import add_output
from specdec_t5x.bench.paper import plotting, points, published
from specdec_t5x.bench.paper.published import NOT_IN_PAPER
from specdec_t5x.bench.table import Column, Table

_ALPHAS = np.linspace(0.0, 0.99, 100)
_GAMMAS = (1, 2, 3, 5, 7, 10)
_COSTS = (0.01, 0.02, 0.04, 0.11, 0.2)
_MOST = 30  # Figure 3: the longest draft that is tried.


def _flags(parser: argparse.ArgumentParser) -> None:
  add_output(parser)
  parser.add_argument(
    "--points",
    metavar="FILE",
    help="a table2.json or table4.json: its measured rows are drawn too",
  )


def gamma_flags(parser: argparse.ArgumentParser) -> None:
  """Adds the flags of figures with a curve a gamma."""
  _flags(parser)
  add = parser.add_argument
  add("--gammas", type=int, nargs="+", default=list(_GAMMAS), help="(%(default)s)")


def cost_flags(parser: argparse.ArgumentParser) -> None:
  """Adds the flags of figure 3, with a curve a c."""
  _flags(parser)
  add = parser.add_argument
  add("--costs", type=float, nargs="+", default=list(_COSTS), help="c (%(default)s)")


def speed_flags(parser: argparse.ArgumentParser) -> None:
  """Adds the flags of figure 4."""
  gamma_flags(parser)
  add = parser.add_argument
  add("--c", type=float, default=0.0, help="of the speed-up (%(default)s)")
  add("--c-hat", type=float, default=0.0, help="of the operations (%(default)s)")


def tokens(args) -> Table:
  """Returns figure 2: mean tokens an iteration against alpha, a curve a gamma."""
  curve = lambda gamma: {"tokens": theory.expected_tokens(_ALPHAS, gamma)}
  # With c = 0 the speed is equation 1.
  printed = [{**row, "tokens": row["speed"]} for row in _printed("table1")]
  return _table(
    args,
    "figure2",
    "Figure 2: expected tokens an iteration (equation 1)",
    (Column("gamma", "gamma"), Column("tokens", "tokens an iteration", 3)),
    [*_curves("gamma", args.gammas, curve), *printed, *points.read(args.points)],
  )


def best_gammas(args) -> Table:
  """Returns figure 3: the best gamma against alpha, a curve a c."""
  best = lambda c: theory.optimal_gamma(_ALPHAS, c, max_gamma=_MOST).astype(int)
  curves = _curves("c", args.costs, lambda c: {"gamma": best(c)})
  # The fastest gamma's point of each draft, task and temperature.
  found = sorted(points.read(args.points), key=lambda point: point["speed"])
  fastest = {point["of"]: point for point in found}
  return _table(
    args,
    "figure3",
    f"Figure 3: best gamma (theorem 3.8), at most {_MOST}",
    (Column("c", "c", 3), Column("gamma", "gamma")),
    [*curves, *_printed("tables_2_and_4", "table 2"), *fastest.values()],
  )


def speeds(args) -> Table:
  """Returns figure 4: speed-up and operations against alpha, a curve a gamma."""
  curve = lambda gamma: {
    "speed": theory.walltime_improvement(_ALPHAS, gamma, args.c),
    "operations": theory.operations_factor(_ALPHAS, gamma, args.c_hat),
  }
  printed = _printed("table1", "table 1 (c = c_hat = 0)")
  return _table(
    args,
    "figure4",
    f"Figure 4: speed-up (c = {args.c:g}) and operations (c_hat = {args.c_hat:g})",
    (
      Column("gamma", "gamma"),
      Column("speed", "speed-up", 3),
      Column("operations", "operations", 3),
    ),
    [*_curves("gamma", args.gammas, curve), *printed, *points.read(args.points)],
  )


def _curves(name: str, values: Sequence, curve: Callable) -> list[dict]:
  rows = []
  for value in values:
    found = curve(value)
    for i, alpha in enumerate(_ALPHAS):
      numbers = {key: column[i].item() for key, column in found.items()}
      rows.append({"of": "theory", name: value, "alpha": float(alpha), **numbers})
  return rows


def _printed(name, called="table 1"):
  return [{**row, "of": f"paper, {called}"} for row in published.numbers()[name]]


def _table(args, name, title, columns, rows):
  settings = {k: v for k, v in vars(args).items() if k not in ("output", "points")}
  shown = (Column("of", "of"), Column("alpha", "alpha"), *columns)
  shown = [dataclasses.replace(column, missing=NOT_IN_PAPER) for column in shown]
  notes = ["Theory at every tenth of alpha; the CSV has every hundredth."]
  return published.table(name, title, shown, rows, notes, settings, brief=_is_brief)


def _is_brief(row):
  return row["of"] != "theory" or round(100 * row["alpha"]) % 10 == 0


def _figure(make, add_flags, by, panels) -> Command:
  """Returns a figure's command.

  Args:
    make: makes the table from the flags.
    add_flags: adds them.
    by: the column with a curve a value.
    panels: what each shows, and the label of that axis.
  """

  def checked(args):
    plotting.require_matplotlib()
    return make(args)

  def draw(table, folder):
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
    return plotting.save(figure, folder, table.name)

  return Command(__doc__, checked, add_flags, plotting.drawing(draw))


def _draw_marks(axis, rows, column, by, colors):
  seen = set()
  for row in rows:
    if row["of"] == "theory":
      continue
    ours = row["of"].startswith("measured")
    kind = "measured" if ours else row["of"]
    # The colour of its curve; black where no curve is drawn for its gamma or c.
    axis.plot(
      [row["alpha"]],
      [row[column]],
      marker="*" if ours else "o",
      markersize=10 if ours else 5,
      linestyle="",
      markerfacecolor=colors.get(row[by], "white"),
      markeredgecolor="black",
      label=None if kind in seen else kind,
    )
    seen.add(kind)


FIGURE_2 = _figure(
  tokens, gamma_flags, "gamma", [("tokens", "expected tokens an iteration")]
)
FIGURE_3 = _figure(best_gammas, cost_flags, "c", [("gamma", "best gamma")])
FIGURE_4 = _figure(
  speeds,
  speed_flags,
  "gamma",
  [("speed", "speed-up"), ("operations", "times the operations")],
)
