"""Devices that are not there, modelled: `python -m specdec_t5x.bench model`."""

import sys

from specdec_t5x.bench.__main__ import main

if __name__ == "__main__":
  sys.exit(main(["model", *sys.argv[1:]]))
