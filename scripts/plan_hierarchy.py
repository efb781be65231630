"""The hierarchy of drafts that pays: `python -m specdec_t5x.bench hierarchy`."""

import sys

from specdec_t5x.bench.__main__ import main

if __name__ == "__main__":
  sys.exit(main(["hierarchy", *sys.argv[1:]]))
