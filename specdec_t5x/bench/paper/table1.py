"""Table 1 of the paper: operations and speed that theory gives, ours beside theirs.

  python -m specdec_t5x.bench table1 --output DIR

Measures nothing: c = c_hat = 0.
"""

from specdec_t5x.analysis import theory
from specdec_t5x.bench.command import Command
from specdec_t5x.bench.flags import add_output
from specdec_t5x.bench.paper import published
from specdec_t5x.bench.table import Column, Table

# Half a unit of the last digit that the table prints.
_HALF_A_HUNDREDTH = 0.005

_COLUMNS = (
  Column("alpha", "alpha", 1),
  Column("gamma", "gamma"),
  Column("paper_operations", "operations, paper"),
  Column("operations", "ours", 4),
  Column("paper_speed", "speed, paper"),
  Column("speed", "ours", 4),
  Column("agrees", "same digits"),
)


def make(args) -> Table:
  """Returns the table; it follows from theory alone."""
  del args
  rows = [_row(row) for row in published.numbers()["table1"]]
  notes = [
    "Operations: theorem 3.11 with c_hat = 0. Speed: theorem 3.8 with c = 0, which is "
    "equation 1's tokens per iteration."
  ]
  title = "Table 1: arithmetic operations and speed against plain decoding"
  return published.table("table1", title, _COLUMNS, rows, notes)


def _row(row):
  operations = float(theory.operations_factor(row["alpha"], row["gamma"], 0))
  speed = float(theory.walltime_improvement(row["alpha"], row["gamma"], 0))
  off = max(abs(operations - row["operations"]), abs(speed - row["speed"]))
  return {
    "alpha": row["alpha"],
    "gamma": row["gamma"],
    "paper_operations": row["operations"],
    "operations": operations,
    "paper_speed": row["speed"],
    "speed": speed,
    "agrees": "yes" if off <= _HALF_A_HUNDREDTH else "no",
  }


COMMAND = Command(__doc__, make, add_output)
