"""Table 5 and appendix A.5 of the paper: lenience, ours beside theirs.

  python scripts/reproduce_table5.py --preset demo --output DIR
  python scripts/reproduce_table5.py --preset paper --tasks ende --target DIR \
    --draft T5-small=DIR T5-base=DIR T5-large=DIR --tfds-data-dir DIR --output DIR
  python scripts/reproduce_table5.py --target DIR --draft NAME=DIR --vocabulary FILE \
    --inputs FILE --prefix "translate English to German: " --output DIR

Each cell is kept in DIR/cells.jsonl as soon as it is measured: a run that was stopped
goes on where it was, and tables share their cells. Leave all cores to it.
"""

import sys

if __name__ == "__main__":
  from specdec_t5x.quiet import import_quietly

  import_quietly("tensorflow")

from specdec_t5x.bench.paper.table5 import COMMAND

if __name__ == "__main__":
  sys.exit(COMMAND.main(__doc__))
