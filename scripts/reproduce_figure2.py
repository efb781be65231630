"""Figure 2 of the paper: expected tokens an iteration against alpha.

  python scripts/reproduce_figure2.py --points DIR/table4.json --output DIR

Needs the extra `reproduce` (matplotlib).
"""

import sys

from specdec_t5x.bench.paper.curves import FIGURE_2

if __name__ == "__main__":
  sys.exit(FIGURE_2.main(__doc__))
