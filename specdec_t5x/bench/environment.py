"""What a measurement was made with."""

import datetime
import functools
import hashlib
import os
import pathlib
from collections.abc import Sequence
from importlib import metadata

import jax

import specdec_t5x
from specdec_t5x import tuning

PACKAGES = ("jax", "jaxlib", "flax")
_TIMING = "timed", "iteration", "programs", "costs", "oracle"
# Of this package: what decodes, what times it, and what reads compiled programs.
SOURCES = (
  *(f"{room}/**/*.py" for room in ("core", "network", "decoding", "drafters")),
  *(f"bench/{name}.py" for name in _TIMING),
  *(f"native/*.{kind}" for kind in ("py", "cc", "h")),
  *("policies.py", "tuning.py", "analysis/hlo.py"),
)


def environment(packages: Sequence[str] = PACKAGES) -> dict[str, str | None]:
  """Returns versions (None: not installed), code, device, its host's cores, date."""
  return {
    **{name: _version(name) for name in packages},
    "code": code(pathlib.Path(specdec_t5x.__file__).parent),
    "device": _device(),
    "cores": str(os.cpu_count()),
    "date": datetime.date.today().isoformat(),
  }


def machine() -> dict[str, str | None]:
  """Returns what a time depends on beside the settings."""
  found = environment()
  return {name: found[name] for name in ("device", "cores", "jax", "jaxlib", "code")}


@functools.cache
def code(package: pathlib.Path) -> str:
  """Returns a digest of the sources that decode and of those that time it.

  Args:
    package: the folder of specdec_t5x.
  """
  digest = hashlib.sha256()
  for path in sorted(path for pattern in SOURCES for path in package.glob(pattern)):
    digest.update(f"{path.relative_to(package)}\0".encode())
    digest.update(path.read_bytes())
  return digest.hexdigest()[:16]


def _device() -> str:
  device = jax.devices()[0]
  is_cpu = device.platform == "cpu"  # Whose kind is "cpu", too.
  return f"{device.platform} {tuning.processor() if is_cpu else device.device_kind}"


def _version(package) -> str | None:
  try:
    return metadata.version(package)
  except metadata.PackageNotFoundError:
    return None
