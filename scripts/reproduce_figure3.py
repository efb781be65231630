"""Figure 3 of the paper: the best gamma against alpha.

  python scripts/reproduce_figure3.py --points DIR/table2.json --output DIR

Needs the extra `reproduce` (matplotlib).
"""

import sys

from specdec_t5x.bench.paper.curves import FIGURE_3

if __name__ == "__main__":
  sys.exit(FIGURE_3.main(__doc__))
