"""Our decoding beside its peers': `python -m specdec_t5x.bench peers`."""

import sys

from specdec_t5x.bench.__main__ import main

if __name__ == "__main__":
  sys.exit(main(["peers", *sys.argv[1:]]))
