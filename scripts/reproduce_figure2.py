"""Figure 2 of the paper, ours beside theirs: `python -m specdec_t5x.bench figure2`."""

import sys

from specdec_t5x.bench.__main__ import main

if __name__ == "__main__":
  sys.exit(main(["figure2", *sys.argv[1:]]))
