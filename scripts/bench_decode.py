"""Speculation at set acceptance rates: `python -m specdec_t5x.bench decode`."""

import sys

from specdec_t5x.bench.__main__ import main

if __name__ == "__main__":
  sys.exit(main(["decode", *sys.argv[1:]]))
