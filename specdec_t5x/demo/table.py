"""The demo's table as text, and its numbers as JSON."""

import dataclasses
import json
import os
from collections.abc import Sequence

from specdec_t5x.demo.comparison import Row
from specdec_t5x.demo.recipe import DemoPair
from specdec_t5x.tables import aligned

HEADER = (
  "task",
  "T",
  "gamma",
  "draft",
  "alpha (95%)",
  "tokens/call",
  "speed-up (quartiles)",
  "Thm 3.8",
  "identical",
)


NOTES = """\
alpha is sum_x min(p, q), the mean over drafted tokens that were tried. The speed-up is
the plain loop's seconds a token over ours, at batch 1, reading the input included.
Theorem 3.8 predicts it from alpha, gamma and c = draft seconds / target seconds a
token; it takes a block to cost what one token costs, and knows no input. Sampled
outputs have the target's law, not its draws, so scores differ by chance, by some points
here."""


def table(pair: DemoPair, rows: Sequence[Row]) -> str:
  """Returns the rows as aligned text, scores, if any, in the last column, and notes."""
  scores = [f"{pair.metric}: plain / ours / draft alone"] if pair.metric else []
  columns = aligned([(*HEADER, *scores), *(_cells(pair, row) for row in rows)])
  return f"{columns}\n\n{NOTES}"


def _cells(pair: DemoPair, row: Row) -> tuple[str, ...]:
  alpha, speed = row.alpha, row.speedup
  scores = row.plain_score, row.score, row.draft_score
  same = "sampled" if row.identical is None else f"{row.identical}/{row.inputs}"
  return (
    pair.name,
    f"{row.temperature:g}",
    str(row.gamma),
    row.draft,
    f"{alpha.value:.3f} [{alpha.low:.3f}, {alpha.high:.3f}]",
    f"{row.tokens_per_call.value:.2f}",
    f"{speed.median:.2f}x [{speed.low:.2f}, {speed.high:.2f}]",
    f"{row.predicted:.2f}x (c {row.c:.2f})",
    same,
    *([" / ".join(f"{score:.1f}" for score in scores)] if pair.metric else []),
  )


def save(path: str, rows: Sequence[Row]) -> None:
  """Writes the rows as JSON; the file is either whole or not there."""
  os.makedirs(os.path.dirname(path), exist_ok=True)
  with open(f"{path}.partial", "w", encoding="utf-8") as file:
    json.dump([dataclasses.asdict(row) for row in rows], file, indent=2)
  os.replace(f"{path}.partial", path)
