"""The copy draft on texts with known outputs: `python -m specdec_t5x.bench copy`."""

import sys

from specdec_t5x.bench.__main__ import main

if __name__ == "__main__":
  sys.exit(main(["copy", *sys.argv[1:]]))
