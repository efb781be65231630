"""Figure 5 of the paper: calls of encoders, draft and target over time.

  python scripts/reproduce_figure5.py --preset demo --tasks ende --output DIR

Needs the extra `reproduce` (matplotlib). Drawn from the measured times of the parts;
other pairs and the paper's as for scripts/reproduce_table2.py. Leave all cores to it.
"""

import sys

if __name__ == "__main__":
  from specdec_t5x.quiet import import_quietly

  import_quietly("tensorflow")

from specdec_t5x.bench.paper.timeline import COMMAND

if __name__ == "__main__":
  sys.exit(COMMAND.main(__doc__))
