"""`python -m lab COMMAND`: research on speculative decoding, from a clone.

`--help` after a command describes the command. Every command but `pair` and
`differences` prints a table and writes the table to --output:

  model      times on a TPU, modelled from compiled programs
  layers     the best sublayers to skip if a target drafts for itself
  hierarchy  the fastest hierarchy of drafts
  link       the cost in alpha and bits of a draft in another process
  online     alpha while the draft learns from served requests
  methods    every drafter beside Hugging Face, CTranslate2 and upstream T5X
  tree       the fastest tree for heads
  copy       the speed of the copy draft on texts with known outputs
  head       the time of a certified head for a large vocabulary
  pair       trains the pair in the package again
  demo       the speed of the pair in the package
  differences  rounding or a bug, where plain and speculative outputs differ

`python -m lab.stress.NAME` tests whole runs: kills, load, restore.
"""

import argparse
import importlib
import sys
from collections.abc import Sequence

from specdec_t5x.quiet import import_quietly

# The module of each command.
COMMANDS = {
  "model": "lab.model.command",
  "layers": "lab.layers.command",
  "hierarchy": "lab.hierarchy.command",
  "link": "lab.link.command",
  "online": "lab.online.command",
  "methods": "lab.peers.methods",
  "tree": "lab.trees",
  "copy": "lab.copies",
  "head": "lab.head",
  "pair": "lab.pair.recipe",
  "demo": "lab.pair.comparison",
  "differences": "lab.differences",
}
# Commands that need no TensorFlow.
_LIGHT = ("model", "head")


def main(argv: Sequence[str] | None = None) -> int:
  """Runs the command named by the first argument.

  Args:
    argv: command and flags; by default the arguments of the process.

  Returns:
    The exit status: 0, or 1 after an error message about the input.
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
  module = importlib.import_module(COMMANDS[name])
  # A command that writes no table is a module with a function `main`.
  return getattr(module, "COMMAND", module).main(argv[1:])


if __name__ == "__main__":
  sys.exit(main())
