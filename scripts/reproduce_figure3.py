"""Figure 3 of the paper, ours beside theirs: `python -m benchmarks figure3`."""

import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))

from benchmarks.__main__ import main

if __name__ == "__main__":
  sys.exit(main(["figure3", *sys.argv[1:]]))
