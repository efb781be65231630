"""Fixed draft lengths beside adaptive ones: `python -m specdec_t5x.bench gamma`."""

import sys

from specdec_t5x.bench.__main__ import main

if __name__ == "__main__":
  sys.exit(main(["gamma", *sys.argv[1:]]))
