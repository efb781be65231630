"""Figure 5 of the paper: calls of encoders, draft and target over time.

  python -m benchmarks figure5 --preset demo --tasks ende --output DIR

Shows gamma = 7, gamma = 3 and plain decoding, from the measured times of the parts; the
paper's figure is schematic. Needs the extra `reproduce` (matplotlib). The flags of
other pairs and of the paper's pair are those of table2.
"""

import dataclasses
from collections.abc import Iterator
from typing import Any

from benchmarks import jobs, plotting
from benchmarks.cells import measure_all
from benchmarks.command import Command
from benchmarks.measured import Measured, Setting
from benchmarks.paper.published import OUTPUT
from benchmarks.table import Table, render

_COLORS = {
  "target encoder": "#e0b400",
  "draft encoder": "#e07b00",
  "draft": "#4a90d9",
  "target": "#7b4ab8",
}

# The start, the duration and the kind of a call.
Box = tuple[float, float, str]


def make(args) -> Table:
  """Measures the parts, decodes the input, and returns a row per way to decode."""
  job = jobs.from_flags(args)[0]
  job = dataclasses.replace(job, drafts=dict([*job.drafts.items()][:1]))
  settings = [Setting(gamma, args.temperature) for gamma in args.gammas]
  cells = measure_all(args, [job], lambda draft: settings)
  rows = [_row(cell, row["gamma"], args.input) for row, cell in cells]
  rows.append(_row(cells[-1][1], 0, args.input))
  words = {**vars(args), "task": job.task, "draft": cells[0][0]["draft"]}
  settings = {**jobs.known(args), "gammas": args.gammas, "input": args.input}
  return render("figure5", rows, words, settings=settings)


def _row(cell: Measured | None, gamma: int, number: int) -> dict[str, Any]:
  """Returns the row of a way to decode an input; only the name if not measured.

  Args:
    cell: the measurement.
    gamma: the draft length in tokens; 0 is plain decoding.
    number: the input's number.
  """
  name = {"decoding": f"gamma = {gamma}" if gamma else "plain"}
  if cell is None:
    return name
  if not 0 <= number < cell.inputs:
    raise ValueError(
      f"--input: expected a number below the number of decoded inputs ({cell.inputs}), "
      f"got {number}. Raise --num-tokens to decode more inputs."
    )
  prefix = "" if gamma else "plain_"
  costs = cell.costs
  tokens = int(cell.columns[f"{prefix}emitted"][number])
  calls = int(cell.columns["target_calls"][number]) if gamma else tokens
  seconds = {
    "encoder_ms": costs.encoder,
    "draft_encoder_ms": costs.draft_encoder if gamma else 0.0,
    "draft_ms": costs.draft / gamma if gamma else 0.0,
    "target_ms": costs.block if gamma else costs.plain,
    "measured_ms": float(cell.columns[f"{prefix}seconds"][number]),
  }
  milliseconds = {column: 1e3 * value for column, value in seconds.items()}
  counts = {"tokens": tokens, "calls": calls, "draft_steps": calls * gamma}
  row = {**name, **counts, **milliseconds}
  return {**row, "total_ms": sum(duration for _, duration, _ in boxes(row))}


def boxes(row) -> Iterator[Box]:
  """Yields the calls of a row of the table, in ms."""
  begins = [("target encoder", "encoder_ms"), ("draft encoder", "draft_encoder_ms")]
  call = [("draft", "draft_ms")] * (row["draft_steps"] // row["calls"])
  call.append(("target", "target_ms"))
  time = 0.0
  for kind, column in (*begins, *call * row["calls"]):
    if row[column]:
      yield time, row[column], kind
      time += row[column]


def draw(table: Table) -> Any:
  """Returns the figure of the measured rows; None if no row was measured."""
  rows = [row for row in table.rows if "calls" in row]
  if not rows:
    return None
  figure, (axis,) = plotting.new_figure(11, 0.8 + 0.7 * len(rows))
  for place, row in enumerate(rows):
    for start, duration, kind in boxes(row):
      axis.broken_barh(
        [(start, duration)],
        (-place - 0.3, 0.6),
        facecolors=_COLORS[kind],
        edgecolors="white",
        linewidth=0.4,
      )
  for kind, color in _COLORS.items():
    axis.plot([], [], "s", color=color, label=kind)
  axis.set_yticks([-place for place in range(len(rows))])
  axis.set_yticklabels([row["decoding"] for row in rows])
  axis.set(xlabel="ms", xlim=(0, 1.01 * max(row["total_ms"] for row in rows)))
  axis.legend(fontsize=7, ncols=4, loc="lower right", bbox_to_anchor=(1, 1))
  return figure


COMMAND = Command(
  __doc__,
  make,
  {
    **jobs.PAIRS,
    "gammas": [7, 3],
    "temperature": 0.0,
    "input": (0, "number of the input to show"),
    **jobs.CELLS,
  },
  output=OUTPUT,
  draw=draw,
  is_figure=True,
)
