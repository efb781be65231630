"""What a command says while it runs, on stderr: a line as each stage begins."""

import os
import pathlib
import sys
import time


def _age() -> float:
  """Returns the seconds since this process started, where Linux tells, else 0."""
  try:
    fields = pathlib.Path("/proc/self/stat").read_text().rpartition(")")[2].split()
    uptime = float(pathlib.Path("/proc/uptime").read_text().split()[0])
  except OSError:
    return 0.0
  return uptime - int(fields[19]) / os.sysconf("SC_CLK_TCK")


_started = time.monotonic() - _age()
_is_quiet = False


def set_quiet(is_quiet: bool) -> None:
  """Silences `say` and `stage` from here on, or lets them speak again."""
  global _is_quiet
  _is_quiet = is_quiet


def say(message: str) -> None:
  """Prints a line, unless QUIET is set."""
  if not _is_quiet:
    print(message, file=sys.stderr, flush=True)


def stage(message: str) -> None:
  """Prints that a stage begins, with the seconds since the process started."""
  say(f"[{time.monotonic() - _started:5.1f} s] {message}")
