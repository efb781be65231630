"""Table 3 of the paper: alpha of every draft, tables of n-grams among them."""

import argparse

from specdec_t5x.bench import flags, jobs
from specdec_t5x.bench.command import Command
from specdec_t5x.bench.measured import Setting
from specdec_t5x.bench.measuring import measure_all
from specdec_t5x.bench.paper import published, speeds
from specdec_t5x.bench.paper.published import NOT_IN_PAPER
from specdec_t5x.bench.table import Column, Table
from specdec_t5x.drafters.draft_model import DEFAULT_GAMMA

_COLUMNS = (
  Column("task", "task"),
  Column("target", "target"),
  Column("draft", "draft"),
  Column("temperature", "T"),
  Column("paper_alpha", "paper: alpha", missing=NOT_IN_PAPER),
  Column("alpha", "ours: alpha", 3),
  Column("alpha_by_counts", "by counts", 3),
  Column("tokens_per_call", "tokens a target call"),
  Column("gamma", "gamma"),
  Column("tokens", "tokens"),
)


def add_flags(parser: argparse.ArgumentParser) -> None:
  """Adds the table's flags."""
  flags.add_cells(parser)
  parser.set_defaults(with_tables=True)
  flags.add_temperatures(parser)
  about = "tokens drafted a call (%(default)s)"
  parser.add_argument("--gamma", type=int, default=DEFAULT_GAMMA, help=about)


def make(args) -> Table:
  """Measures what the flags ask for and returns the table."""
  settings = [Setting(args.gamma, t, timed=False) for t in args.temperatures]
  found = measure_all(args, jobs.from_flags(args), lambda draft: settings)
  rows = published.beside(
    [{**each.row, "folder": each.target} for each in found],
    published.numbers()["table3"],
    ("task", "draft", "temperature"),
    lambda row: {"target": row["target"], "paper_alpha": row["alpha"]},
    preset=jobs.preset(args),
  )
  rows = [{"target": row.get("folder"), **row} for row in rows]
  notes = [
    speeds.ALPHA_NOTE,
    "The paper's alpha is over 10,000 tokens. A row has both only where task and "
    "draft are named as the paper's (--preset paper, or --task; n-gram tables named "
    "unigram and bigram).",
  ]
  settings = {**jobs.known(args), "gamma": args.gamma}
  title = "Table 3: acceptance alpha by draft"
  return published.table("table3", title, _COLUMNS, rows, notes, settings)


COMMAND = Command(__doc__ + speeds.USAGE, make, add_flags)
