"""`python -m specdec_t5x`: prints versions, devices and kernels, and the commands."""

import argparse
import os

from specdec_t5x import environment

_COMMANDS = """
Commands:
  python -m t5x.infer                 decodes a task (configs/spec_*.gin) or a text file
                                      (configs/files.gin)
  python -m t5x.eval                  decodes and scores a task: configs/eval_*.gin
  python -m specdec_t5x.train         trains a draft: configs/train/*.gin
  python -m specdec_t5x.demo          compares decoding with and without a draft
  python -m specdec_t5x.contrib.link  serves a draft to a target in another process"""

if __name__ == "__main__":
  parser = argparse.ArgumentParser(
    prog="python -m specdec_t5x",
    description="Prints versions, devices and kernels of this machine.",
    epilog=_COMMANDS,
    formatter_class=argparse.RawDescriptionHelpFormatter,
  )
  parser.parse_args()
  # The report claims no GPU memory.
  os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
  print("\n".join(environment.report()), _COMMANDS, sep="\n")
