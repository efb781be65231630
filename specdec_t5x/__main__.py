"""Prints versions, devices and kernels of this machine: `python -m specdec_t5x`."""

import argparse
import os

from specdec_t5x import environment

if __name__ == "__main__":
  parser = argparse.ArgumentParser(
    prog="python -m specdec_t5x",
    description="Prints versions, devices and kernels of this machine.",
    epilog="Other commands: python -m t5x.infer, t5x.eval, specdec_t5x.train (with gin "
    "files), specdec_t5x.demo, specdec_t5x.contrib.link.",
  )
  parser.parse_args()
  # The report claims no GPU memory.
  os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
  print("\n".join(environment.report()))
