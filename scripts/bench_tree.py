"""The tree that heads had best draft: `python -m specdec_t5x.bench tree`."""

import sys

from specdec_t5x.bench.__main__ import main

if __name__ == "__main__":
  sys.exit(main(["tree", *sys.argv[1:]]))
