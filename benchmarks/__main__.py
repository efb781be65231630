"""`python -m benchmarks COMMAND`: measures, prints a table and writes files.

`COMMAND --help` describes a command. tables.toml has the comparisons of ways to decode.
"""

import argparse
import functools
import importlib
import sys
from collections.abc import Sequence

from benchmarks import report
from benchmarks.command import Command
from benchmarks.table import tables
from specdec_t5x.quiet import import_quietly

COMPARISONS = [name for name, entry in tables("benchmarks").items() if "ways" in entry]
# The module of each command, with `make` and perhaps `draw`.
COMMANDS = {
  "decode": "gpu",
  "gpu": "gpu",
  "infer": "infer",
  "machine": "machine",
  **{f"table{number}": "paper.tables" for number in range(1, 6)},
  **{f"figure{number}": "paper.figures" for number in range(2, 6)},
  **dict.fromkeys(COMPARISONS, "comparison"),
}
# Commands that never load TensorFlow, which takes seconds.
_LIGHT = ("decode", "infer", "machine", "gpu", "figure2", "figure3", "figure4")
OTHERS = {"report": report.main, "results": report.measure}


def main(argv: Sequence[str] | None = None) -> int:
  """Runs the command that the first argument names.

  Returns the exit status: 0, or 1 after an error message about the input.
  """
  argv = sys.argv[1:] if argv is None else argv
  parser = argparse.ArgumentParser(
    prog="python -m benchmarks",
    description=__doc__,
    formatter_class=argparse.RawDescriptionHelpFormatter,
  )
  parser.add_argument("command", choices=(*COMMANDS, *OTHERS))
  name = parser.parse_args(argv[:1]).command
  if name in OTHERS:
    return OTHERS[name](argv[1:])
  if name not in _LIGHT:
    import_quietly("tensorflow")
  module = importlib.import_module(f"benchmarks.{COMMANDS[name]}")
  make = functools.partial(module.make, name)
  return Command(name, make, draw=getattr(module, "draw", None)).main(argv[1:])


if __name__ == "__main__":
  sys.exit(main())
