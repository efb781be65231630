"""A draft in another process: `python -m specdec_t5x.bench link`."""

import sys

from specdec_t5x.bench.__main__ import main

if __name__ == "__main__":
  sys.exit(main(["link", *sys.argv[1:]]))
