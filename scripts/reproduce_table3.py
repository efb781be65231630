"""Table 3 of the paper, ours beside theirs: `python -m specdec_t5x.bench table3`."""

import sys

from specdec_t5x.bench.__main__ import main

if __name__ == "__main__":
  sys.exit(main(["table3", *sys.argv[1:]]))
