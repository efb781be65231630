"""What this machine can do: `python -m specdec_t5x.bench machine`."""

import sys

from specdec_t5x.bench.__main__ import main

if __name__ == "__main__":
  sys.exit(main(["machine", *sys.argv[1:]]))
