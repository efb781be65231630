"""Table 4 of the paper: expected and measured speed-up, ours beside theirs.

  python scripts/reproduce_table4.py --preset demo --output DIR \
    --gammas 1 2 3 4 5 6 7 8 9 10
  python scripts/reproduce_table4.py --preset paper --tasks ende --target DIR \
    --draft T5-small=DIR T5-base=DIR T5-large=DIR --tfds-data-dir DIR --output DIR
  python scripts/reproduce_table4.py --target DIR --draft NAME=DIR --vocabulary FILE \
    --inputs FILE --prefix "translate English to German: " --output DIR

Each cell is kept in DIR/cells.jsonl as soon as it is measured: a run that was stopped
goes on where it was, and tables share their cells. Leave all cores to it.
"""

import sys

if __name__ == "__main__":
  from specdec_t5x.quiet import import_quietly

  import_quietly("tensorflow")

from specdec_t5x.bench.paper.table4 import COMMAND

if __name__ == "__main__":
  sys.exit(COMMAND.main(__doc__))
