"""A certified head beside the whole one: `python -m specdec_t5x.bench head`."""

import sys

from specdec_t5x.bench.__main__ import main

if __name__ == "__main__":
  sys.exit(main(["head", *sys.argv[1:]]))
