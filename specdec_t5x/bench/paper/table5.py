"""Table 5 and appendix A.5 of the paper: alpha, and greedy speed, with lenience."""

import argparse

from specdec_t5x.bench import flags, jobs
from specdec_t5x.bench.command import Command
from specdec_t5x.bench.measured import Setting
from specdec_t5x.bench.measuring import measure_all
from specdec_t5x.bench.paper import published, speeds
from specdec_t5x.bench.paper.published import NOT_IN_PAPER
from specdec_t5x.bench.table import Column, Table
from specdec_t5x.drafters.draft_model import DEFAULT_GAMMA

LENIENCES = (1.0, 0.5, 0.3, 0.1)

_COLUMNS = (
  Column("task", "task"),
  Column("draft", "draft"),
  Column("temperature", "T"),
  Column("lenience", "lenience"),
  Column("gamma", "gamma", missing=NOT_IN_PAPER),
  Column("paper_alpha", "paper: alpha", missing=NOT_IN_PAPER),
  Column("paper_speed", "speed", 1, NOT_IN_PAPER),
  Column("alpha_by_counts", "ours: alpha by counts", 3),
  Column("tokens_per_call", "tokens a target call"),
  Column("speed", "speed, measured"),
  Column("tokens", "tokens"),
)


def add_flags(parser: argparse.ArgumentParser) -> None:
  """Adds the table's flags."""
  flags.add_cells(parser)
  parser.set_defaults(with_tables=True)
  add = parser.add_argument
  add(
    "--leniences", type=float, nargs="+", default=list(LENIENCES), help="(%(default)s)"
  )
  add("--gamma", type=int, default=DEFAULT_GAMMA, help="at T=1 (%(default)s)")
  add("--greedy-gamma", type=int, default=8, help="at T=0, timed (%(default)s)")


def make(args) -> Table:
  """Measures what the flags ask for and returns the table."""
  settings = lambda draft: list(_settings(args, draft))
  found = measure_all(args, jobs.from_flags(args), settings)
  printed = published.numbers()
  rows = published.beside(
    [{**each.row, "lenience": each.setting.lenience} for each in found],
    [*printed["table5"], *printed["appendix_a5_greedy"]],
    ("task", "draft", "temperature", "lenience"),
    _paper,
    preset=jobs.preset(args),
  )
  notes = [
    "alpha: drafted tokens that stood, of those that were tried; [95% interval], "
    "inputs as the unit. The outputs with lenience below 1 are not the target's own.",
    "T=0 accepts x where p(x) >= lenience max p, p at temperature 1 (the paper prints "
    "<=, which its own numbers contradict), and is timed.",
    speeds.SPEED_NOTE,
  ]
  settings = {**jobs.known(args), "leniences": args.leniences}
  title = "Table 5: lenience"
  return published.table("table5", title, _COLUMNS, rows, notes, settings)


def _settings(args, draft):
  for lenience in args.leniences:
    yield Setting(args.gamma, 1.0, lenience, timed=False)
  if draft.drafter != "draft_model":
    return  # The paper's greedy row is of a model; n-grams are no faster for it.
  for lenience in args.leniences:
    yield Setting(args.greedy_gamma, 0.0, lenience)


def _paper(row):
  return {
    "gamma": row.get("gamma"),
    "paper_alpha": row["alpha"],
    "paper_speed": row.get("speed"),
  }


COMMAND = Command(__doc__ + speeds.USAGE, make, add_flags)
