"""`python -m specdec_t5x.bench COMMAND`: measures, prints a table and writes it.

Each command says with --help what it does. Leave all cores to it.
"""

import argparse
import importlib
import sys
from collections.abc import Sequence

from specdec_t5x.quiet import import_quietly

# Where each command is, in this package.
COMMANDS = {
  "decode": "decode:COMMAND",
  "copy": "copying:COMMAND",
  "batches": "batches:COMMAND",
  "gamma": "gamma:COMMAND",
  "choose-gamma": "choice:COMMAND",
  "rules": "rules:COMMAND",
  "tree": "tree:COMMAND",
  "layers": "layers:COMMAND",
  "hierarchy": "hierarchy:COMMAND",
  "methods": "methods:COMMAND",
  "link": "link:COMMAND",
  "online": "online:COMMAND",
  "peers": "peers.command:COMMAND",
  "model": "model.command:COMMAND",
  "accelerator": "accelerator.command:COMMAND",
  **{f"table{number}": f"paper.table{number}:COMMAND" for number in range(1, 6)},
  **{f"figure{number}": f"paper.curves:FIGURE_{number}" for number in (2, 3, 4)},
  "figure5": "paper.timeline:COMMAND",
}
# Nothing of theirs loads TensorFlow, which takes seconds.
_LIGHT = ("decode", "model", "accelerator", "table1", "figure2", "figure3", "figure4")


def main(argv: Sequence[str] | None = None) -> int:
  """Runs the command that the first argument names.

  Args:
    argv: the command and its flags; the process's own where None.

  Returns:
    The exit status: 0, or 1 after printing what is wrong with the input.
  """
  argv = sys.argv[1:] if argv is None else argv
  parser = argparse.ArgumentParser(
    prog="python -m specdec_t5x.bench",
    description=__doc__,
    formatter_class=argparse.RawDescriptionHelpFormatter,
  )
  parser.add_argument("command", choices=COMMANDS)
  name = parser.parse_args(argv[:1]).command
  if name not in _LIGHT:
    import_quietly("tensorflow")
  module, _, attribute = COMMANDS[name].partition(":")
  command = getattr(importlib.import_module(f"specdec_t5x.bench.{module}"), attribute)
  return command.main(argv[1:], name)


if __name__ == "__main__":
  sys.exit(main())
