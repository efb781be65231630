"""Prints versions, devices and kernels of this machine: `python -m specdec_t5x`."""

import os

from specdec_t5x import environment

if __name__ == "__main__":
  # The report claims no GPU memory.
  os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
  print("\n".join(environment.report()))
