"""Resident memory of this process in Linux's count."""

import pathlib

_STATUS = pathlib.Path("/proc/self/status")
_CLEAR = pathlib.Path("/proc/self/clear_refs")
MIB = 2**20


def resident() -> int:
  """Returns the resident bytes of this process."""
  return _read("VmRSS")


def peak() -> int:
  """Returns the peak of resident bytes since `forget_peak`."""
  return _read("VmHWM")


def forget_peak() -> None:
  """Resets the peak to the current resident bytes."""
  _CLEAR.write_text("5")


def _read(field: str) -> int:
  lines = dict(line.split(":", 1) for line in _STATUS.read_text().splitlines())
  count, unit = lines[field].split()
  assert unit == "kB"
  return int(count) * 1024
