"""Resident memory of this process in Linux's count."""

import pathlib

MIB = 2**20


def resident() -> int:
  """Returns the resident bytes of this process."""
  return _read("VmRSS")


def peak() -> int:
  """Returns the peak of resident bytes since `forget_peak`."""
  return _read("VmHWM")


def forget_peak() -> None:
  """Resets the peak to the current resident bytes."""
  pathlib.Path("/proc/self/clear_refs").write_text("5")


def _read(field: str) -> int:
  status = pathlib.Path("/proc/self/status").read_text()
  return 1024 * int(status.split(f"{field}:")[1].split()[0])
