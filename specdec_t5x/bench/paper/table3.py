"""Table 3: alpha of every draft, tables of n-grams among them."""

import argparse

from specdec_t5x.bench import flags, jobs
from specdec_t5x.bench.command import Command
from specdec_t5x.bench.measuring import measure_all
from specdec_t5x.bench.paper import published, speeds
from specdec_t5x.bench.study import Setting
from specdec_t5x.bench.table import NOT_IN_PAPER, Column, Table

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
  flags.add_pairs(parser)
  parser.set_defaults(with_tables=True)
  flags.add_measuring(parser)
  flags.add_temperatures(parser)
  parser.add_argument(
    "--gamma", type=int, default=7, help="tokens drafted a call (%(default)s)"
  )


def make(args, cells) -> Table:
  """Measures what the flags ask for and returns the table."""
  rows, shown = [], set()
  for job in jobs.from_flags(args):
    study = job.load()
    requests = [
      (draft, Setting(args.gamma, temperature, timed=False))
      for draft in study.drafts
      for temperature in args.temperatures
    ]
    found = measure_all(study, requests, cells, args.recorded)
    for (draft, setting), cell in found.items():
      name = study.task, draft, setting.temperature
      printed = _printed(args, *name)
      shown |= {name} if printed else set()
      target = printed["target"] if printed else job.target
      rows.append({**_names(target, *name), **_paper(printed), **_ours(cell)})
  for row in published.numbers()["table3"]:
    name = row["task"], row["draft"], row["temperature"]
    if name not in shown:
      rows.append({**_names(row["target"], *name), **_paper(row)})
  notes = [
    speeds.ALPHA_NOTE,
    "The paper's alpha is over 10,000 tokens. A row has both only where task and "
    "draft are named as the paper's (--preset paper, or --task; n-gram tables named "
    "unigram and bigram).",
  ]
  known = {"preset": jobs.preset(args), "models": jobs.models(args)}
  settings = {**known, "gamma": args.gamma}
  title = "Table 3: acceptance alpha by draft"
  return Table("table3", title, _COLUMNS, rows, notes, settings)


def _printed(args, task, draft, temperature):
  if jobs.preset(args) == "demo":
    return None
  wanted = task, draft, temperature
  match = lambda row: (row["task"], row["draft"], row["temperature"]) == wanted
  return next(filter(match, published.numbers()["table3"]), None)


def _names(target, task, draft, temperature):
  return {
    "task": task,
    "target": target,
    "draft": draft,
    "temperature": f"{temperature:g}",
  }


def _paper(row):
  return {"paper_alpha": row["alpha"]} if row else {}


def _ours(cell):
  if cell is None:
    return {}
  return {
    "alpha": cell.alpha_by_mass,
    "alpha_by_counts": cell.alpha,
    "tokens_per_call": cell.tokens_per_call,
    "gamma": cell.setting.gamma,
    "tokens": cell.tokens,
  }


COMMAND = Command(make, add_flags)
