"""Figure 4 of the paper: speed-up and operations against alpha.

  python scripts/reproduce_figure4.py --points DIR/table4.json --output DIR

Needs the extra `reproduce` (matplotlib).
"""

import sys

from specdec_t5x.bench.paper.curves import FIGURE_4

if __name__ == "__main__":
  sys.exit(FIGURE_4.main(__doc__))
