"""Table 3 of the paper: alpha of every draft, ours beside theirs.

  python scripts/reproduce_table3.py --preset demo --output DIR
  python scripts/reproduce_table3.py --preset paper --tasks ende --target DIR \
    --draft T5-small=DIR T5-base=DIR T5-large=DIR --tfds-data-dir DIR --output DIR
  python scripts/reproduce_table3.py --target DIR --draft NAME=DIR unigram=DIR copy \
    --vocabulary FILE --inputs FILE --prefix "summarize: " --output DIR

Each cell is kept in DIR/cells.jsonl as soon as it is measured: a run that was stopped
goes on where it was, and tables share their cells. Leave all cores to it.
"""

import sys

if __name__ == "__main__":
  from specdec_t5x.quiet import import_quietly

  import_quietly("tensorflow")

from specdec_t5x.bench.paper.table3 import COMMAND

if __name__ == "__main__":
  sys.exit(COMMAND.main(__doc__))
