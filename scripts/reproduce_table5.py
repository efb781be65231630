"""Table 5 of the paper, ours beside theirs: `python -m specdec_t5x.bench table5`."""

import sys

from specdec_t5x.bench.__main__ import main

if __name__ == "__main__":
  sys.exit(main(["table5", *sys.argv[1:]]))
