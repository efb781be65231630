"""Every way to draft side by side: `python -m specdec_t5x.bench methods`."""

import sys

from specdec_t5x.bench.__main__ import main

if __name__ == "__main__":
  sys.exit(main(["methods", *sys.argv[1:]]))
