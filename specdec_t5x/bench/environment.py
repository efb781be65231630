"""What a measurement was made with."""

import datetime
import os
from collections.abc import Sequence
from importlib import metadata

import jax


def environment(packages: Sequence[str]) -> dict[str, str | None]:
  """Returns versions (None: not installed), the device, its host's cores, the date."""
  device = jax.devices()[0]
  return {
    **{name: _version(name) for name in packages},
    "device": f"{device.platform} {device.device_kind}",
    "cores": str(os.cpu_count()),
    "date": datetime.date.today().isoformat(),
  }


def _version(package) -> str | None:
  try:
    return metadata.version(package)
  except metadata.PackageNotFoundError:
    return None
