"""Plain, fixed, automatic drafts by batch: `python -m specdec_t5x.bench batches`."""

import sys

from specdec_t5x.bench.__main__ import main

if __name__ == "__main__":
  sys.exit(main(["batches", *sys.argv[1:]]))
