"""`python -m lab COMMAND`: research about this project, from a clone.

Each command prints a table and writes the table to --output. `--help` after a command
describes the command:

  model      a TPU's times, modelled from programs that its compiler made
  layers     the sublayers that a target leaves out to draft for itself
  hierarchy  the fastest hierarchy of drafts
  link       the cost in alpha and bits of a draft in another process
  online     alpha while the draft learns from the requests that it serves
  methods    all ways to draft beside Hugging Face, CTranslate2 and upstream T5X

`python -m lab.stress.NAME` tests whole runs: kills, load, restore.
"""

import argparse
import importlib
import sys
from collections.abc import Sequence

from specdec_t5x.quiet import import_quietly

# Where each command is.
COMMANDS = {
  "model": "lab.model.command",
  "layers": "lab.layers.command",
  "hierarchy": "lab.hierarchy.command",
  "link": "lab.link.command",
  "online": "lab.online.command",
  "methods": "lab.peers.methods",
}
# The others load TensorFlow.
_LIGHT = ("model",)


def main(argv: Sequence[str] | None = None) -> int:
  """Runs the command that the first argument names.

  Args:
    argv: the command and its flags; None takes the process's arguments.

  Returns:
    The exit status: 0, or 1 after printing what is wrong with the input.
  """
  argv = sys.argv[1:] if argv is None else argv
  parser = argparse.ArgumentParser(
    prog="python -m lab",
    description=__doc__,
    formatter_class=argparse.RawDescriptionHelpFormatter,
  )
  parser.add_argument("command", choices=COMMANDS)
  name = parser.parse_args(argv[:1]).command
  if name not in _LIGHT:
    import_quietly("tensorflow")
  command = importlib.import_module(COMMANDS[name]).COMMAND
  return command.main(argv[1:], f"python -m lab {name}")


if __name__ == "__main__":
  sys.exit(main())
