"""The best GAMMA here, as a gin file: `python -m specdec_t5x.bench choose-gamma`."""

import sys

from specdec_t5x.bench.__main__ import main

if __name__ == "__main__":
  sys.exit(main(["choose-gamma", *sys.argv[1:]]))
