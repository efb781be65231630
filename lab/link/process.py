"""Starts a draft's process, for benchmarks and tests."""

import contextlib
import re
import subprocess
import sys
from collections.abc import Iterator


@contextlib.contextmanager
def drafting(draft: str, dtype: str = "float32", *more: str) -> Iterator[str]:
  """Starts `python -m specdec_t5x.contrib.link`, and ends the process at the exit.

  Args:
    draft: the draft's checkpoint.
    dtype: the draft's dtype.
    *more: further flags.

  Yields:
    The address of the process.

  Raises:
    ValueError: if the process does not start; states the reason.
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
  """Waits until a draft's process answers, and returns the printed address.

  Raises:
    ValueError: if the process ends instead.
  """
  for line in process.stdout:
    if match := re.search(r" at (\S+)\.$", line.rstrip()):
      return match[1]
  raise ValueError(f"The draft's process ended with status {process.wait()}.")
