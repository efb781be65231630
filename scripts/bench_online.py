"""Alpha while the draft learns: `python -m specdec_t5x.bench online`."""

import sys

from specdec_t5x.bench.__main__ import main

if __name__ == "__main__":
  sys.exit(main(["online", *sys.argv[1:]]))
