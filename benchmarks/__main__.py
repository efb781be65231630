"""`python -m benchmarks COMMAND`: measures, prints a table and writes files.

`COMMAND --help` describes a command.
"""

import argparse
import importlib
import sys
from collections.abc import Sequence

from benchmarks import report
from specdec_t5x.quiet import import_quietly

# Commands in a module of the command's name.
_SAME_NAME = "decode infer rules tree methods batches"
# "module:attribute" of each command, in this package.
COMMANDS = {
  **{name: f"{name}:COMMAND" for name in _SAME_NAME.split()},
  "copy": "copies:COMMAND",
  "head": "bounds:HEAD",
  "machine": "bounds:MACHINE",
  "gpu": "gpu.command:COMMAND",
  **{f"table{number}": f"paper.tables:TABLE_{number}" for number in range(1, 6)},
  **{f"figure{number}": f"paper.curves:FIGURE_{number}" for number in (2, 3, 4)},
  "figure5": "paper.timeline:COMMAND",
}
# Commands that never load TensorFlow, which takes seconds.
_LIGHT = "decode head infer machine gpu figure2 figure3 figure4"
# Commands that parse their flags: `report` renders pages from kept tables, `results`
# measures all tables of the pages.
OTHERS = {"report": report.main, "results": report.measure}


def main(argv: Sequence[str] | None = None) -> int:
  """Runs the command that the first argument names.

  Returns:
    The exit status: 0, or 1 after an error message about the input.
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
  if name not in _LIGHT.split():
    import_quietly("tensorflow")
  module, _, attribute = COMMANDS[name].partition(":")
  command = getattr(importlib.import_module(f"benchmarks.{module}"), attribute)
  return command.main(argv[1:], f"python -m benchmarks {name}")


if __name__ == "__main__":
  sys.exit(main())
