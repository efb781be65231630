"""Figures 2 to 5 of the paper, drawn with matplotlib."""

import argparse
import dataclasses
import json
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
from etils import epath

from benchmarks import jobs
from benchmarks.cells import measure_all
from benchmarks.command import new_figure
from benchmarks.measure import Measured, Setting
from benchmarks.paper import published
from benchmarks.table import Table, render
from specdec_t5x.core import theory

_ALPHAS = np.linspace(0.0, 0.99, 100)
_MOST = 30  # The largest gamma of figure 3.
# By figure: what distinguishes the curves, and the axes' labels by column.
_PANELS = {
  "figure2": ("gamma", {"tokens": "expected tokens an iteration"}),
  "figure3": ("c", {"gamma": "best gamma"}),
  "figure4": ("gamma", {"speed": "speed-up", "operations": "times the operations"}),
}
_COLORS = {
  "target encoder": "#e0b400",
  "draft encoder": "#e07b00",
  "draft": "#4a90d9",
  "target": "#7b4ab8",
}


def make(name: str, args: argparse.Namespace) -> Table:
  """Returns the numbers of a figure, such as 'figure2'."""
  return _make_calls(args) if name == "figure5" else _make_curves(name, args)


def draw(table: Table) -> Any:
  """Returns the figure of `make`'s table."""
  return _draw_calls(table) if table.name == "figure5" else _draw_curves(table)


# ---- Figures 2 to 4: theory for every alpha, and points ----


def _make_curves(name: str, args: argparse.Namespace) -> Table:
  """Returns curves for each gamma or c, the paper's points, and measured points."""
  by, _ = _PANELS[name]
  rows = []
  for value in args.costs if by == "c" else args.gammas:
    if name == "figure2":
      curve = {"tokens": theory.expected_tokens(_ALPHAS, value)}
    elif name == "figure3":
      gammas = theory.optimal_gamma(_ALPHAS, value, max_gamma=_MOST)
      curve = {"gamma": gammas.astype(int)}
    else:
      speeds = theory.walltime_improvement(_ALPHAS, value, args.c)
      operations = theory.operations_factor(_ALPHAS, value, args.c_hat)
      curve = {"speed": speeds, "operations": operations}
    for i, alpha in enumerate(_ALPHAS.tolist()):
      numbers = {key: column[i].item() for key, column in curve.items()}
      hidden = {"hidden": round(100 * alpha) % 10 != 0}
      rows.append({"of": "theory", by: value, "alpha": alpha, **numbers, **hidden})
  points = _read_points(args.points)
  printed = published.numbers()
  if name == "figure3":
    rows += [{**row, "of": "paper, table 2"} for row in printed["tables_2_and_4"]]
    # Only the fastest gamma of each draft, task and temperature has a point.
    points.sort(key=lambda point: point["speed"])
    points = list({point["of"]: point for point in points}.values())
  else:
    # With c = 0 the speed is equation 1, the tokens of figure 2.
    of = "paper, table 1" + (" (c = c_hat = 0)" if name == "figure4" else "")
    rows += [{**row, "of": of, "tokens": row["speed"]} for row in printed["table1"]]
  words = {**vars(args), "most": _MOST}
  return render(name, rows + points, words, facts={"paper": printed["source"]})


def _read_points(path: str | None) -> list[dict[str, Any]]:
  """Returns a point for each row of a table's JSON; none if `path` is None."""
  if path is None:
    return []
  try:
    document = json.loads(epath.Path(path).read_text())
    rows = [row for row in document["rows"] if row.get("alpha")]
    if not rows:
      raise ValueError("no measured row")
    device = document["environment"]["device"]
    return [
      {
        "of": f"measured: {row['draft']}, {row['task']}, T={row['temperature']} "
        f"({device})",
        "alpha": row["alpha"]["value"],
        "gamma": row["gamma"],
        "c": row["c"],
        "tokens": row["tokens_per_call"]["value"],
        "speed": row["speed"]["median"],
        # The target's scored tokens over the output tokens.
        "operations": (row["gamma"] + 1) / row["tokens_per_call"]["value"],
      }
      for row in rows
    ]
  except (OSError, ValueError, KeyError, TypeError) as error:
    raise ValueError(
      f"--points: {path!r} can't be read ({type(error).__name__}: {error}). Expected "
      "table2.json or table4.json, as written by `python -m benchmarks` table2 "
      "or table4."
    ) from error


def _draw_curves(table: Table) -> Any:
  """Returns the figure, with a panel for each column of `_PANELS`."""
  by, panels = _PANELS[table.name]
  figure, axes = new_figure(5.2 * len(panels), 4.2, len(panels))
  curves = {}
  for row in table.rows:
    if row["of"] == "theory":
      curves.setdefault(row[by], []).append(row)
  colors = {value: f"C{i % 10}" for i, value in enumerate(curves)}
  for axis, (column, label) in zip(axes, panels.items(), strict=True):
    for value, rows in curves.items():
      numbers = [row[column] for row in rows]
      axis.plot(_ALPHAS, numbers, color=colors[value], label=f"{by} = {value:g}")
    labels = set()
    for row in table.rows:
      if row["of"] != "theory":
        ours = row["of"].startswith("measured")
        kind = "measured" if ours else row["of"]
        axis.plot(
          row["alpha"],
          row[column],
          "*" if ours else "o",
          markersize=10 if ours else 5,
          # A point has the colour of the curve with the same gamma or c, else white.
          markerfacecolor=colors.get(row[by], "white"),
          markeredgecolor="black",
          label=None if kind in labels else kind,
        )
        labels.add(kind)
    axis.set(xlabel="alpha", ylabel=label)
  axes[0].legend(fontsize=7)
  figure.suptitle(table.title, fontsize=10)
  return figure


# ---- Figure 5: calls over time ----


def _make_calls(args: argparse.Namespace) -> Table:
  """Measures the parts, decodes the input, and returns a row per way to decode."""
  job = jobs.from_flags(args)
  job = dataclasses.replace(job, drafts=dict([*job.drafts.items()][:1]))
  settings = [Setting(gamma, args.temperature) for gamma in args.gammas]
  cells = measure_all(args, job, lambda draft: settings)
  rows = [_row(cell, row["gamma"], args.input) for row, cell in cells]
  rows.append(_row(cells[-1][1], 0, args.input))
  words = {**vars(args), "task": job.task, "draft": cells[0][0]["draft"]}
  models = {"target": job.target, **job.drafts}
  return render("figure5", rows, words, settings={**vars(args), "models": models})


def _row(cell: Measured, gamma: int, number: int) -> dict[str, Any]:
  """Returns the row of decoding an input with a gamma; gamma 0 is plain decoding."""
  if not 0 <= number < cell.inputs:
    raise ValueError(
      f"--input: expected a number below the number of decoded inputs ({cell.inputs}), "
      f"got {number}. Raise --num-tokens to decode more inputs."
    )
  costs = cell.costs
  prefix = "" if gamma else "plain_"
  tokens = int(cell.columns[f"{prefix}emitted"][number])
  calls = int(cell.columns["target_calls"][number]) if gamma else tokens
  row = {
    "decoding": f"gamma = {gamma}" if gamma else "plain",
    "tokens": tokens,
    "calls": calls,
    "draft_steps": calls * gamma,
    # Encoding is the time of a call without iterations.
    "encoder_ms": 1e3 * costs.plain_start,
    "draft_encoder_ms": 1e3 * max(costs.start - costs.plain_start, 0) * bool(gamma),
    "draft_ms": 1e3 * costs.draft / gamma if gamma else 0.0,
    "target_ms": 1e3 * (costs.block if gamma else costs.plain),
    "measured_ms": 1e3 * float(cell.columns[f"{prefix}seconds"][number]),
  }
  return {**row, "total_ms": sum(duration for _, duration, _ in boxes(row))}


def boxes(row: Mapping[str, Any]) -> Iterator[tuple[float, float, str]]:
  """Yields the start, the duration and the kind of the calls of a row, in ms."""
  begins = [("target encoder", "encoder_ms"), ("draft encoder", "draft_encoder_ms")]
  call = [("draft", "draft_ms")] * (row["draft_steps"] // row["calls"])
  call.append(("target", "target_ms"))
  time = 0.0
  for kind, column in (*begins, *call * row["calls"]):
    if row[column]:
      yield time, row[column], kind
      time += row[column]


def _draw_calls(table: Table) -> Any:
  """Returns the figure of the rows."""
  rows = table.rows
  figure, (axis,) = new_figure(11, 0.8 + 0.7 * len(rows))
  style = {"edgecolors": "white", "linewidth": 0.4}
  for place, row in enumerate(rows):
    for start, duration, kind in boxes(row):
      span = (-place - 0.3, 0.6)
      axis.broken_barh([(start, duration)], span, facecolors=_COLORS[kind], **style)
  for kind, color in _COLORS.items():
    axis.plot([], [], "s", color=color, label=kind)
  labels = [row["decoding"] for row in rows]
  axis.set_yticks([-place for place in range(len(rows))], labels)
  axis.set(xlabel="ms", xlim=(0, 1.01 * max(row["total_ms"] for row in rows)))
  axis.legend(fontsize=7, ncols=4, loc="lower right", bbox_to_anchor=(1, 1))
  return figure
