"""A draft's process, started from this one: for benchmarks and tests."""

import contextlib
import re
import subprocess
import sys
from collections.abc import Iterator


@contextlib.contextmanager
def drafting(draft: str, dtype: str = "float32", *more: str) -> Iterator[str]:
  """Starts `python -m specdec_t5x.contrib.link`, and ends it.

  Args:
    draft: the draft's checkpoint.
    dtype: of the draft.
    *more: further flags.

  Yields:
    Its address.

  Raises:
    ValueError: where it does not start; says why.
  """
  command = [sys.executable, "-m", "specdec_t5x.contrib.link", "--draft", draft]
  flags = ["--address", "localhost:0", "--dtype", dtype, *more]
  process = subprocess.Popen(command + flags, stdout=subprocess.PIPE, text=True)
  try:
    yield address_of(process)
  finally:
    process.terminate()
    process.wait()


def address_of(process: subprocess.Popen) -> str:
  """Waits until a draft's process answers; returns the address that it prints.

  Raises:
    ValueError: where it ends instead.
  """
  for line in process.stdout:
    if found := re.search(r" at (\S+)\.$", line.rstrip()):
      return found[1]
  raise ValueError(f"The draft's process ended with status {process.wait()}.")
