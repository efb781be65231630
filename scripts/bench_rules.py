"""Tokens a call by rule and shape of draft: `python -m specdec_t5x.bench rules`."""

import sys

from specdec_t5x.bench.__main__ import main

if __name__ == "__main__":
  sys.exit(main(["rules", *sys.argv[1:]]))
