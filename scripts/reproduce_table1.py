"""Table 1 of the paper: operations and speed that theory gives, ours beside theirs.

  python scripts/reproduce_table1.py --output DIR

Measures nothing.
"""

import sys

from specdec_t5x.bench.paper.table1 import COMMAND

if __name__ == "__main__":
  sys.exit(COMMAND.main(__doc__))
