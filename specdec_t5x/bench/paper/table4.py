"""Table 4 of the paper: expected and measured speed-up, ours beside theirs."""

from specdec_t5x.bench import jobs
from specdec_t5x.bench.command import Command
from specdec_t5x.bench.paper import published, speeds
from specdec_t5x.bench.paper.published import NOT_IN_PAPER
from specdec_t5x.bench.table import Column, Table

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
  Column("speed", "measured"),
  Column("in_all", "all inputs"),
  Column("ratio", "measured / predicted"),
)


def make(args) -> Table:
  """Measures what the flags ask for and returns the table."""
  found = speeds.measure(args)
  rows = published.beside(
    [each.row for each in found],
    published.numbers()["tables_2_and_4"],
    ("task", "draft", "temperature", "gamma"),
    _paper,
    preset=jobs.preset(args),
  )
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
  return published.table("table4", title, _COLUMNS, rows, notes, settings)


def _paper(row):
  return {
    "paper_alpha": row["alpha"],
    "paper_c": row["c"],
    "paper_expected": row["expected"],
    "paper_theorem": published.theorem(row),
    "paper_measured": row["measured"],
    "paper_follows": "yes" if published.follows(row) else "NO",
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


COMMAND = Command(__doc__ + speeds.USAGE, make, speeds.add_flags)
