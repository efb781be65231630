"""What a target skips to draft for itself: `python -m specdec_t5x.bench layers`."""

import sys

from specdec_t5x.bench.__main__ import main

if __name__ == "__main__":
  sys.exit(main(["layers", *sys.argv[1:]]))
