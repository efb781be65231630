"""Figures 2, 3 and 4 of the paper: theory for every alpha, with points on the curves.

  python -m specdec_t5x.bench figure2 --points DIR/table4.json --output DIR

2: expected tokens an iteration; 3: the best gamma; 4: speed-up and operations. Need the
extra `reproduce` (matplotlib).
"""

import argparse
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
  rows = _curves("gamma", args.gammas, curve)
  # With c = 0 the speed is equation 1.
  for row in published.numbers()["table1"]:
    rows.append(_mark("paper, table 1", row, gamma=row["gamma"], tokens=row["speed"]))
  for point in points.read(args.points):
    rows.append(_own_mark(point, gamma=point.gamma, tokens=point.tokens_per_call))
  columns = (Column("gamma", "gamma"), Column("tokens", "tokens an iteration", 3))
  title = "Figure 2: expected tokens an iteration (equation 1)"
  return _table("figure2", title, columns, rows, args)


def best_gammas(args) -> Table:
  """Returns figure 3: the best gamma against alpha, a curve a c."""

  def curve(c):
    best = theory.optimal_gamma(_ALPHAS, c, max_gamma=_MOST)
    return {"gamma": best.astype(int)}

  rows = _curves("c", args.costs, curve)
  for row in published.numbers()["tables_2_and_4"]:
    rows.append(_mark("paper, table 2", row, c=row["c"], gamma=row["gamma"]))
  for point in _fastest(points.read(args.points)):
    rows.append(_own_mark(point, c=point.c, gamma=point.gamma))
  columns = (Column("c", "c", 3), Column("gamma", "gamma"))
  title = f"Figure 3: best gamma (theorem 3.8), at most {_MOST}"
  return _table("figure3", title, columns, rows, args)


def _fastest(found):
  """Returns the fastest gamma's point of each draft, task and temperature."""
  best = {}
  for point in sorted(found, key=lambda point: point.speed):
    best[point.label] = point
  return list(best.values())


def speeds(args) -> Table:
  """Returns figure 4: speed-up and operations against alpha, a curve a gamma."""

  def curve(gamma):
    return {
      "speed": theory.walltime_improvement(_ALPHAS, gamma, args.c),
      "operations": theory.operations_factor(_ALPHAS, gamma, args.c_hat),
    }

  rows = _curves("gamma", args.gammas, curve)
  for row in published.numbers()["table1"]:
    values = {name: row[name] for name in ("gamma", "speed", "operations")}
    rows.append(_mark("paper, table 1 (c = c_hat = 0)", row, **values))
  for point in points.read(args.points):
    # Of the target alone, as with c_hat = 0: what it scores over what is kept.
    operations = (point.gamma + 1) / point.tokens_per_call
    values = {"gamma": point.gamma, "speed": point.speed, "operations": operations}
    rows.append(_own_mark(point, **values))
  columns = (
    Column("gamma", "gamma"),
    Column("speed", "speed-up", 3),
    Column("operations", "operations", 3),
  )
  title = f"Figure 4: speed-up (c = {args.c:g}) and operations (c_hat = {args.c_hat:g})"
  return _table("figure4", title, columns, rows, args)


def _curves(name: str, values: Sequence, curve: Callable) -> list[dict]:
  rows = []
  for value in values:
    found = curve(value)
    for i, alpha in enumerate(_ALPHAS):
      numbers = {key: column[i].item() for key, column in found.items()}
      rows.append({"of": "theory", name: value, "alpha": float(alpha), **numbers})
  return rows


def _mark(of, row, **values):
  return {"of": of, "alpha": row["alpha"], **values}


def _own_mark(point, **values):
  of = f"measured: {point.label} ({point.device})"
  return {"of": of, "alpha": point.alpha, **values}


def _table(name, title, columns, rows, args):
  settings = {k: v for k, v in vars(args).items() if k not in ("output", "points")}
  shown = (Column("of", "of"), Column("alpha", "alpha"), *columns)
  shown = [Column(c.key, c.header, c.digits, NOT_IN_PAPER) for c in shown]
  notes = ["Theory at every tenth of alpha; the CSV has every hundredth."]
  return published.table(name, title, shown, rows, notes, settings, brief=_is_brief)


def _is_brief(row):
  return row["of"] != "theory" or round(100 * row["alpha"]) % 10 == 0


def _drawing(name, panels, by, labels) -> Callable[[Table, str], list[str]]:
  """Returns what draws a table: panels of (column, label), a curve a value of `by`."""

  def draw(table, folder):
    figure, axes = plotting.new_figure(5.2 * len(panels), 4.2, len(panels))
    theory_rows = [row for row in table.rows if row["of"] == "theory"]
    values = list(dict.fromkeys(row[by] for row in theory_rows))
    colors = {value: f"C{i % 10}" for i, value in enumerate(values)}
    for axis, (column, label) in zip(axes, panels, strict=True):
      for value in values:
        curve = [row for row in theory_rows if row[by] == value]
        xs, ys = [r["alpha"] for r in curve], [r[column] for r in curve]
        axis.plot(xs, ys, color=colors[value], label=f"{labels} = {value:g}")
      _draw_marks(axis, table.rows, column, by, colors)
      axis.set(xlabel="alpha", ylabel=label)
    axes[0].legend(fontsize=7)
    figure.suptitle(table.title, fontsize=10)
    return plotting.save(figure, folder, name)

  return draw


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


def _command(make, add_flags, draw) -> Command:
  def checked(args):
    plotting.require_matplotlib()
    return make(args)

  return Command(__doc__, checked, add_flags, plotting.drawing(draw))


FIGURE_2 = _command(
  tokens,
  gamma_flags,
  _drawing("figure2", [("tokens", "expected tokens an iteration")], "gamma", "gamma"),
)
FIGURE_3 = _command(
  best_gammas, cost_flags, _drawing("figure3", [("gamma", "best gamma")], "c", "c")
)
FIGURE_4 = _command(
  speeds,
  speed_flags,
  _drawing(
    "figure4",
    [("speed", "speed-up"), ("operations", "times the operations")],
    "gamma",
    "gamma",
  ),
)
