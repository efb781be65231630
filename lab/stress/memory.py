"""This process's resident memory, as Linux counts it."""

import pathlib

_STATUS = pathlib.Path("/proc/self/status")
_CLEAR = pathlib.Path("/proc/self/clear_refs")
MIB = 2**20


def resident() -> int:
  """Returns the bytes that this process holds in memory now."""
  return _read("VmRSS")


def peak() -> int:
  """Returns the most bytes that this process has held since `forget_peak`."""
  return _read("VmHWM")


def forget_peak() -> None:
  """Sets the peak to what is held now."""
  _CLEAR.write_text("5")


def _read(field: str) -> int:
  lines = dict(line.split(":", 1) for line in _STATUS.read_text().splitlines())
  count, unit = lines[field].split()
  assert unit == "kB"
  return int(count) * 1024
