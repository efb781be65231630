"""Progress messages of commands on stderr: a line at the start of each stage."""

import os
import pathlib
import sys
import time


def _age() -> float:
  """Returns the seconds since this process started; 0 on systems without /proc."""
  try:
    fields = pathlib.Path("/proc/self/stat").read_text().rpartition(")")[2].split()
    uptime = float(pathlib.Path("/proc/uptime").read_text().split()[0])
  except OSError:
    return 0.0
  return uptime - int(fields[19]) / os.sysconf("SC_CLK_TCK")


_started = time.monotonic() - _age()
_is_quiet = False


def set_quiet(is_quiet: bool) -> None:
  """Turns the output of `say` and `stage` off or on."""
  global _is_quiet
  _is_quiet = is_quiet


def say(message: str) -> None:
  """Prints a line on stderr, unless `set_quiet` turned the output off."""
  if not _is_quiet:
    print(message, file=sys.stderr, flush=True)


def stage(message: str) -> None:
  """Prints the start of a stage, with the seconds since the process started."""
  say(f"[{time.monotonic() - _started:5.1f} s] {message}")
