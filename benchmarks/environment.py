"""The environment of a measurement: versions, code and machine."""

import datetime
import functools
import hashlib
import os
import pathlib
from collections.abc import Sequence

import jax

from specdec_t5x import prepared
from specdec_t5x.environment import versions

PACKAGES = ("jax", "jaxlib", "flax")
# The entries of the environment that affect measured times.
MACHINE = ("device", "cores", "jax", "jaxlib", "code")
# The root of the clone.
ROOT = pathlib.Path(__file__).parents[1]
_TIMING = "timed", "study", "oracle", "measure"
_DECODING = "core", "network", "decoding", "drafters", "contrib"
# Patterns of the clone's sources that decode, or that time decodes.
SOURCES = (
  *(f"specdec_t5x/{folder}/**/*.py" for folder in _DECODING),
  *(f"benchmarks/{name}.py" for name in _TIMING),
  *(f"specdec_t5x/native/**/*.{kind}" for kind in ("py", "cc", "h", "cu", "cuh")),
  *(f"specdec_t5x/{name}.py" for name in ("prepared", "tuning")),
)


def environment(packages: Sequence[str] = PACKAGES) -> dict[str, str | None]:
  """Returns versions (None if not installed), code, device, the host's cores, date."""
  device = jax.devices()[0]
  # The device kind of a CPU is "cpu", so the processor's name is more precise.
  kind = prepared.processor() if device.platform == "cpu" else device.device_kind
  return {
    **versions(packages),
    "code": code(ROOT),
    "device": f"{device.platform} {kind}",
    "cores": str(os.cpu_count()),
    "date": datetime.date.today().isoformat(),
  }


def machine() -> dict[str, str | None]:
  """Returns the environment's entries of `MACHINE`."""
  facts = environment()
  return {name: facts[name] for name in MACHINE}


@functools.cache
def code(root: pathlib.Path, sources: Sequence[str] = SOURCES) -> str:
  """Returns a digest of the files in a clone that match the patterns."""
  digest = hashlib.sha256()
  for path in sorted(path for pattern in sources for path in root.glob(pattern)):
    digest.update(f"{path.relative_to(root)}\0".encode())
    digest.update(path.read_bytes())
  return digest.hexdigest()[:16]
