"""The command, with speculation and without: `python -m specdec_t5x.bench infer`."""

import sys

from specdec_t5x.bench.__main__ import main

if __name__ == "__main__":
  sys.exit(main(["infer", *sys.argv[1:]]))
