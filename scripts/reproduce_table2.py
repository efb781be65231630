"""Table 2 of the paper: the speed-up of each draft, ours beside theirs.

  python scripts/reproduce_table2.py --preset demo --output DIR --gammas 1 3 5 7 10
  python scripts/reproduce_table2.py --preset paper --tasks ende --target DIR \
    --draft T5-small=DIR T5-base=DIR T5-large=DIR --tfds-data-dir DIR --output DIR
  python scripts/reproduce_table2.py --target DIR --draft NAME=DIR --vocabulary FILE \
    --inputs FILE --prefix "translate English to German: " --output DIR

Each cell is kept in DIR/cells.jsonl as soon as it is measured: a run that was stopped
goes on where it was, and tables share their cells. Leave all cores to it.
"""

import sys

if __name__ == "__main__":
  from specdec_t5x.quiet import import_quietly

  import_quietly("tensorflow")

from specdec_t5x.bench.paper.table2 import COMMAND

if __name__ == "__main__":
  sys.exit(COMMAND.main(__doc__))
