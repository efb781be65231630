"""Progress messages of commands on stderr: a line at the start of each stage."""

import contextlib
import functools
import logging
import os
import pathlib
import sys
import time
from typing import Any


def _age() -> float:
  """Returns the seconds since this process started; 0 on systems without /proc."""
  try:
    fields = pathlib.Path("/proc/self/stat").read_text().rpartition(")")[2].split()
    uptime = float(pathlib.Path("/proc/uptime").read_text().split()[0])
  except OSError:
    return 0.0
  return uptime - int(fields[19]) / os.sysconf("SC_CLK_TCK")


_started = time.monotonic() - _age()
_logger = logging.getLogger("specdec_t5x")  # Its level says what is printed.
_logger.setLevel(logging.INFO)


def set_quiet(is_quiet: bool) -> None:
  """Turns the output of `say` and `stage` off or on."""
  _logger.setLevel(logging.ERROR if is_quiet else logging.INFO)


class BestEffort:
  """A standard stream that drops texts that can't be written.

  The reader of a stream may end (`2>&1 | head`), and a daemon has no streams. Messages
  are then lost, but results are not.

  Args:
    name: stdout or stderr.
  """

  def __init__(self, name: str):
    self._name = name

  def write(self, text: str) -> None:
    """Writes a text, or drops the text if the stream is closed or broken."""
    # sys.stderr may be None. ValueError: the stream is closed, or lacks the characters.
    with contextlib.suppress(OSError, ValueError, AttributeError):
      getattr(sys, self._name).write(text)

  def flush(self) -> None:
    """Flushes the stream, if possible."""
    with contextlib.suppress(OSError, ValueError, AttributeError):
      getattr(sys, self._name).flush()

  def __getattr__(self, name: str) -> Any:
    return getattr(getattr(sys, self._name), name)


STDOUT, STDERR = BestEffort("stdout"), BestEffort("stderr")


def say(message: str) -> None:
  """Prints a line on stderr, unless `set_quiet` turned the output off."""
  if _logger.isEnabledFor(logging.INFO):
    print(message, file=STDERR, flush=True)


@functools.cache
def say_once(message: str) -> None:
  """Prints a line as `say`, unless this process has printed the line before."""
  say(message)


def announce(message: str) -> None:
  """Prints a line on stdout, even if `set_quiet` turned other output off."""
  print(message, file=STDOUT, flush=True)


def stage(message: str) -> None:
  """Prints the start of a stage, with the seconds since the process started."""
  say(f"[{time.monotonic() - _started:5.1f} s] {message}")
