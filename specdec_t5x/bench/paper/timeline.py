"""Figure 5 of the paper: calls of encoders, draft and target over time.

  python -m specdec_t5x.bench figure5 --preset demo --tasks ende --output DIR

Drawn from the measured times of the parts; the paper's is schematic: gamma = 7, gamma =
3 and plain decoding. Needs the extra `reproduce` (matplotlib). Other pairs and the
paper's as for table2. Leave all cores to it.
"""

import argparse
from collections.abc import Iterator

from specdec_t5x.bench import flags, jobs
from specdec_t5x.bench.command import Command
from specdec_t5x.bench.measured import Setting
from specdec_t5x.bench.measuring import measure_all
from specdec_t5x.bench.paper import plotting, published
from specdec_t5x.bench.table import Column, Table

_COLORS = {
  "target encoder": "#e0b400",
  "draft encoder": "#e07b00",
  "draft": "#4a90d9",
  "target": "#7b4ab8",
}

_COLUMNS = (
  Column("decoding", "decoding"),
  Column("tokens", "tokens"),
  Column("calls", "calls of the target"),
  Column("draft_steps", "of the draft"),
  Column("encoder_ms", "target encoder, ms", 3),
  Column("draft_encoder_ms", "draft encoder, ms", 3),
  Column("draft_ms", "a draft step, ms", 3),
  Column("target_ms", "a target call, ms", 3),
  Column("total_ms", "all of these, ms", 1),
  Column("measured_ms", "measured, whole call, ms", 1),
)

# When something starts, how long it lasts, and what it is.
Box = tuple[float, float, str]


def add_flags(parser: argparse.ArgumentParser) -> None:
  """Adds the figure's flags."""
  flags.add_cells(parser)
  add = parser.add_argument
  add("--gammas", type=int, nargs=2, default=[7, 3], help="(%(default)s)")
  add("--temperature", type=float, default=0.0, help="(%(default)s)")
  add("--input", type=int, default=0, help="number of the input shown (%(default)s)")


def make(args) -> Table:
  """Measures the parts, decodes the input and returns a row a way to decode."""
  plotting.require_matplotlib()
  job = jobs.from_flags(args)[0].of_first_draft()
  settings = [Setting(gamma, args.temperature) for gamma in args.gammas]
  found = measure_all(args, [job], lambda draft: settings)
  rows = [_speculative(each.setting.gamma, each.measured, args.input) for each in found]
  rows.append(_plain(found[-1].measured, args.input))
  notes = [
    f"{job.task}, draft {found[0].draft}, T={args.temperature:g}, input {args.input}. "
    "A target call is scoring, judging and bookkeeping; parts are timed in loops of "
    "their own, the whole call beside plain decoding.",
    "The paper's figure is schematic: it has no times.",
  ]
  title = "Figure 5: calls over time"
  settings = {**jobs.known(args), "gammas": args.gammas, "input": args.input}
  return published.table("figure5", title, _COLUMNS, rows, notes, settings)


def _speculative(gamma, cell, number):
  name = f"gamma = {gamma}"
  if cell is None:
    return {"decoding": name}
  _check_input(cell, number)
  costs = cell.costs
  of_input = {column: values[number].item() for column, values in cell.columns.items()}
  calls = of_input["target_calls"]
  return _row(
    decoding=name,
    tokens=of_input["emitted"],
    calls=calls,
    draft_steps=calls * gamma,
    encoder_ms=1e3 * costs.encoder,
    draft_encoder_ms=1e3 * costs.draft_encoder,
    draft_ms=1e3 * costs.draft / gamma,
    target_ms=1e3 * costs.block,
    measured_ms=1e3 * of_input["seconds"],
  )


def _plain(cell, number):
  if cell is None:
    return {"decoding": "plain"}
  tokens = int(cell.columns["plain_emitted"][number])
  return _row(
    decoding="plain",
    tokens=tokens,
    calls=tokens,
    draft_steps=0,
    encoder_ms=1e3 * cell.costs.encoder,
    draft_encoder_ms=0.0,
    draft_ms=0.0,
    target_ms=1e3 * cell.costs.plain,
    measured_ms=1e3 * float(cell.columns["plain_seconds"][number]),
  )


def _row(**row):
  return {**row, "total_ms": sum(duration for _, duration, _ in boxes(row))}


def _check_input(cell, number):
  if not 0 <= number < cell.inputs:
    raise ValueError(
      f"--input: expected a number below {cell.inputs}, the inputs decoded, got "
      f"{number}. More --num-tokens decode more of them."
    )


def boxes(row) -> Iterator[Box]:
  """Yields what happens in a row of the table, in ms."""
  time = 0.0
  for name in ("encoder", "draft_encoder"):
    if row[f"{name}_ms"]:
      kind = "target encoder" if name == "encoder" else "draft encoder"
      yield time, row[f"{name}_ms"], kind
      time += row[f"{name}_ms"]
  steps = row["draft_steps"] // row["calls"]
  for _ in range(row["calls"]):
    for _ in range(steps):
      yield time, row["draft_ms"], "draft"
      time += row["draft_ms"]
    yield time, row["target_ms"], "target"
    time += row["target_ms"]


def draw(table: Table, folder: str) -> list[str]:
  """Draws the rows that were measured."""
  rows = [row for row in table.rows if "calls" in row]
  if not rows:
    return []
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
  return plotting.save(figure, folder, table.name)


COMMAND = Command(__doc__, make, add_flags, plotting.drawing(draw))
