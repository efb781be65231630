"""Table 2: the measured speed-up of each draft, at the gamma that is fastest."""

from specdec_t5x.bench.command import Command
from specdec_t5x.bench.paper import published, speeds
from specdec_t5x.bench.table import NOT_IN_PAPER, Column, Table

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


def make(args, cells) -> Table:
  """Measures what the flags ask for and returns the table."""
  found = speeds.measure(args, cells)
  rows, shown = [], set()
  for name in dict.fromkeys((s.task, s.draft, s.setting.temperature) for s in found):
    printed = speeds.paper_row(args, *name)
    group = [s for s in found if (s.task, s.draft, s.setting.temperature) == name]
    rows.append({**_names(*name), **_paper(printed), **_ours(group)})
    if printed:
      shown.add(name)
  for printed in published.numbers()["tables_2_and_4"]:
    name = printed["task"], printed["draft"], printed["temperature"]
    if name not in shown:
      rows.append({**_names(*name), **_paper(printed)})
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
  return Table("table2", title, _COLUMNS, rows, notes, settings)


def _names(task, draft, temperature):
  return {"task": task, "draft": draft, "temperature": f"{temperature:g}"}


def _paper(row):
  if row is None:
    return {}
  return {
    "paper_gamma": row["gamma"],
    "paper_alpha": row["alpha"],
    "paper_c": row["c"],
    "paper_speed": row["measured"],
  }


def _ours(group):
  measured = [s.cell for s in group if s.cell]
  if not measured:
    return {}
  best = max(measured, key=lambda cell: cell.speedup.median)
  same = best.identical
  return {
    "gamma": best.setting.gamma,
    "alpha": best.alpha_by_mass,
    "alpha_by_counts": best.alpha,
    "c": best.costs.c,
    "tokens_per_call": best.tokens_per_call,
    "theorem": best.theorem,
    "with_block": best.with_block,
    "predicted": best.predicted,
    "speed": best.speedup,
    "identical": "sampled" if same is None else f"{same}/{best.inputs}",
    "tokens": best.tokens,
    "gammas": " ".join(str(cell.setting.gamma) for cell in measured),
  }


COMMAND = Command(make, speeds.add_flags)
