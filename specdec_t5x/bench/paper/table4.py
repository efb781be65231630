"""Table 4: the speed-up that theory expects beside the measured one."""

from specdec_t5x.bench.command import Command
from specdec_t5x.bench.paper import published, speeds
from specdec_t5x.bench.table import NOT_IN_PAPER, Column, Table

_COLUMNS = (
  Column("task", "task"),
  Column("draft", "draft"),
  Column("temperature", "T"),
  Column("gamma", "gamma"),
  Column("paper_alpha", "paper: alpha", missing=NOT_IN_PAPER),
  Column("paper_c", "c", missing=NOT_IN_PAPER),
  Column("paper_expected", "expected", 1, NOT_IN_PAPER),
  Column("paper_theorem", "Theorem 3.8 of these", 3, NOT_IN_PAPER),
  Column("paper_measured", "measured", 1, NOT_IN_PAPER),
  Column("paper_follows", "expected follows", missing=NOT_IN_PAPER),
  Column("alpha", "ours: alpha", 3),
  Column("c", "c", 3),
  Column("block", "block / token", 2),
  Column("tokens_per_call", "tokens a target call"),
  Column("theorem", "expected (Theorem 3.8)"),
  Column("with_block", "with the block's cost"),
  Column("predicted", "predicted, whole calls"),
  Column("measured", "measured"),
  Column("in_all", "all inputs"),
  Column("ratio", "measured / predicted"),
)


def make(args, cells) -> Table:
  """Measures what the flags ask for and returns the table."""
  found = speeds.measure(args, cells)
  rows, shown = [], set()
  for speed in found:
    setting = speed.setting
    name = speed.task, speed.draft, setting.temperature
    printed = speeds.paper_row(args, *name)
    same = printed if printed and printed["gamma"] == setting.gamma else None
    if same:
      shown.add(name)
    rows.append({**_names(*name, setting.gamma), **_paper(same), **_ours(speed.cell)})
  for row in published.numbers()["tables_2_and_4"]:
    name = row["task"], row["draft"], row["temperature"]
    if name not in shown:
      rows.append({**_names(*name, row["gamma"]), **_paper(row)})
  notes = [
    speeds.SPEED_NOTE,
    speeds.ALPHA_NOTE,
    "Expected: (1 - alpha^(gamma+1)) / ((1 - alpha)(gamma c + 1)). With the block's "
    "cost: E(alpha, gamma) token / (gamma draft step + block), block = scoring gamma + "
    "1 tokens, judging and bookkeeping.",
    "Predicted, whole calls: encoder + tokens * token over encoders + calls * (gamma "
    "draft step + block), with the calls that were counted; median input [quartiles]. "
    "Each time is of that part alone, in a loop of its own.",
    *_flags(),
  ]
  title = "Table 4: expected and measured speed-up"
  settings = speeds.settings(args, found)
  return Table("table4", title, _COLUMNS, rows, notes, settings)


def _names(task, draft, temperature, gamma):
  return {
    "task": task,
    "draft": draft,
    "temperature": f"{temperature:g}",
    "gamma": gamma,
  }


def _paper(row):
  if row is None:
    return {}
  return {
    "paper_alpha": row["alpha"],
    "paper_c": row["c"],
    "paper_expected": row["expected"],
    "paper_theorem": published.theorem(row),
    "paper_measured": row["measured"],
    "paper_follows": "yes" if published.follows(row) else "NO",
  }


def _ours(cell):
  if cell is None:
    return {}
  return {
    "alpha": cell.alpha_by_mass,
    "c": cell.costs.c,
    "block": cell.costs.block / cell.costs.plain,
    "tokens_per_call": cell.tokens_per_call,
    "theorem": cell.theorem,
    "with_block": cell.with_block,
    "predicted": cell.predicted,
    "measured": cell.speedup,
    "in_all": cell.speedup_in_all,
    "ratio": cell.speedup.median / cell.predicted.median,
  }


def _flags():
  """Says which of the paper's expected values its own alpha and c don't give."""
  for row in published.numbers()["tables_2_and_4"]:
    if not published.follows(row):
      yield (
        f"The paper's {row['task']}, {row['draft']}, T={row['temperature']}: expected "
        f"{row['expected']} does not follow from the printed alpha {row['alpha']} and "
        f"c {row['c']}, which give {published.theorem(row):.3f} (docs/math.md)."
      )


COMMAND = Command(make, speeds.add_flags)
