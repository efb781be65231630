"""Table 5 and appendix A.5: alpha, and greedy speed, with lenience."""

import argparse

from specdec_t5x.bench import flags, jobs
from specdec_t5x.bench.command import Command
from specdec_t5x.bench.measuring import measure_all
from specdec_t5x.bench.paper import published, speeds
from specdec_t5x.bench.study import Setting
from specdec_t5x.bench.table import NOT_IN_PAPER, Column, Table

LENIENCES = (1.0, 0.5, 0.3, 0.1)

_COLUMNS = (
  Column("task", "task"),
  Column("draft", "draft"),
  Column("temperature", "T"),
  Column("lenience", "lenience"),
  Column("gamma", "gamma", missing=NOT_IN_PAPER),
  Column("paper_alpha", "paper: alpha", missing=NOT_IN_PAPER),
  Column("paper_speed", "speed", 1, NOT_IN_PAPER),
  Column("alpha", "ours: alpha by counts", 3),
  Column("tokens_per_call", "tokens a target call"),
  Column("speed", "speed, measured"),
  Column("tokens", "tokens"),
)


def add_flags(parser: argparse.ArgumentParser) -> None:
  """Adds the table's flags."""
  flags.add_pairs(parser)
  parser.set_defaults(with_tables=True)
  flags.add_measuring(parser)
  add = parser.add_argument
  add(
    "--leniences", type=float, nargs="+", default=list(LENIENCES), help="(%(default)s)"
  )
  add("--gamma", type=int, default=7, help="at T=1 (%(default)s)")
  add("--greedy-gamma", type=int, default=8, help="at T=0, timed (%(default)s)")


def make(args, cells) -> Table:
  """Measures what the flags ask for and returns the table."""
  rows, shown = [], set()
  for job in jobs.from_flags(args):
    study = job.load()
    requests = [
      (draft, setting) for draft in study.drafts for setting in _settings(args, draft)
    ]
    found = measure_all(study, requests, cells, args.recorded)
    for (draft, setting), cell in found.items():
      name = study.task, draft, setting.temperature, setting.lenience
      printed = _printed()[name] if _has_paper(args, name) else None
      shown |= {name} if printed else set()
      rows.append({**_names(*name, setting.gamma), **_paper(printed), **_ours(cell)})
  for name, row in _printed().items():
    if name not in shown:
      rows.append({**_names(*name, row.get("gamma")), **_paper(row)})
  notes = [
    "alpha: drafted tokens that stood, of those that were tried; [95% interval], "
    "inputs as the unit. The outputs with lenience below 1 are not the target's own.",
    "T=0 accepts x where p(x) >= lenience max p, p at temperature 1 (the paper prints "
    "<=, which its own numbers contradict), and is timed.",
    speeds.SPEED_NOTE,
  ]
  known = {"preset": jobs.preset(args), "models": jobs.models(args)}
  settings = {**known, "leniences": args.leniences}
  title = "Table 5: lenience"
  return Table("table5", title, _COLUMNS, rows, notes, settings)


def _settings(args, draft):
  for lenience in args.leniences:
    yield Setting(args.gamma, 1.0, lenience, timed=False)
  if draft.drafter != "draft_model":
    return  # The paper's greedy row is of a model; n-grams are no faster for it.
  for lenience in args.leniences:
    yield Setting(args.greedy_gamma, 0.0, lenience)


def _printed():
  rows = [*published.numbers()["table5"], *published.numbers()["appendix_a5_greedy"]]
  return {(r["task"], r["draft"], r["temperature"], r["lenience"]): r for r in rows}


def _has_paper(args, name):
  return jobs.preset(args) != "demo" and name in _printed()


def _names(task, draft, temperature, lenience, gamma):
  return {
    "task": task,
    "draft": draft,
    "temperature": f"{temperature:g}",
    "lenience": f"{lenience:g}",
    "gamma": gamma,
  }


def _paper(row):
  if row is None:
    return {}
  return {"paper_alpha": row["alpha"], "paper_speed": row.get("speed")}


def _ours(cell):
  if cell is None:
    return {}
  return {
    "alpha": cell.alpha,
    "tokens_per_call": cell.tokens_per_call,
    "speed": cell.speedup if cell.costs else "not timed",
    "tokens": cell.tokens,
  }


COMMAND = Command(make, add_flags)
