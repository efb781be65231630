"""Table 2 of the paper: the speed-up of each draft at its fastest gamma."""

from specdec_t5x.bench import jobs
from specdec_t5x.bench.command import Command
from specdec_t5x.bench.paper import published, speeds
from specdec_t5x.bench.paper.published import NOT_IN_PAPER
from specdec_t5x.bench.table import Column, Table

_COLUMNS = (
  Column("task", "task"),
  Column("draft", "draft"),
  Column("temperature", "T"),
  Column("paper_gamma", "paper: gamma", missing=NOT_IN_PAPER),
  Column("paper_alpha", "alpha", missing=NOT_IN_PAPER),
  Column("paper_c", "c", missing=NOT_IN_PAPER),
  Column("paper_speed", "speed", 1, NOT_IN_PAPER),
  Column("gamma", "ours: gamma"),
  Column("alpha", "alpha", 3),
  Column("alpha_by_counts", "alpha by counts", 3),
  Column("c", "c", 3),
  Column("tokens_per_call", "tokens a target call"),
  Column("theorem", "Theorem 3.8"),
  Column("with_block", "with the block's cost"),
  Column("predicted", "predicted, whole calls"),
  Column("speed", "speed, measured"),
  Column("identical", "identical outputs"),
  Column("tokens", "tokens"),
  Column("gammas", "fastest of gammas"),
)


def make(args) -> Table:
  """Measures what the flags ask for and returns the table."""
  found = speeds.measure(args)
  groups = {}
  for each in found:
    groups.setdefault(tuple(each.name.items()), []).append(each.measured)
  rows = published.beside(
    [{**dict(name), **_ours(cells)} for name, cells in groups.items()],
    published.numbers()["tables_2_and_4"],
    ("task", "draft", "temperature"),
    _paper,
    preset=jobs.preset(args),
  )
  notes = [
    speeds.SPEED_NOTE,
    speeds.ALPHA_NOTE,
    "Theorem 3.8: from our alpha, gamma and c, the draft's step over the target's call "
    "on one token. With the block's cost: a call on gamma + 1 tokens as measured. "
    "Predicted, whole calls: the encoders too.",
    f"Paper: {published.numbers()['setup']['target']}, batch 1, "
    f"{published.numbers()['setup']['hardware']}. A row has both only where task and "
    "draft are named as the paper's (--preset paper, or --task).",
  ]
  title = "Table 2: speed-up, fastest gamma"
  settings = speeds.settings(args, found)
  return published.table("table2", title, _COLUMNS, rows, notes, settings)


def _paper(row):
  return {
    "paper_gamma": row["gamma"],
    "paper_alpha": row["alpha"],
    "paper_c": row["c"],
    "paper_speed": row["measured"],
  }


def _ours(cells):
  measured = [cell for cell in cells if cell]
  if not measured:
    return {}
  best = max(measured, key=lambda cell: cell.speedup.median)
  gammas = " ".join(str(cell.setting.gamma) for cell in measured)
  return {**best.row(), "gammas": gammas}


COMMAND = Command(__doc__ + speeds.USAGE, make, speeds.add_flags)
