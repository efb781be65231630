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
# The root of the clone.
ROOT = pathlib.Path(__file__).parents[1]
_TIMING = "timed", "iteration", "study", "costs", "oracle", "run"
_DECODING = "core", "network", "decoding", "drafters", "contrib"
# Patterns of the clone's sources that decode, or that time decodes.
SOURCES = (
  *(f"specdec_t5x/{folder}/**/*.py" for folder in _DECODING),
  *(f"benchmarks/{name}.py" for name in _TIMING),
  *(f"specdec_t5x/native/*.{kind}" for kind in ("py", "cc", "h")),
  *("specdec_t5x/policies.py", "specdec_t5x/tuning.py"),
)


def environment(packages: Sequence[str] = PACKAGES) -> dict[str, str | None]:
  """Returns versions (None if not installed), code, device, the host's cores, date."""
  return {
    **versions(packages),
    "code": code(ROOT),
    "device": _device(),
    "cores": str(os.cpu_count()),
    "date": datetime.date.today().isoformat(),
  }


def machine() -> dict[str, str | None]:
  """Returns the environment's entries that affect measured times."""
  facts = environment()
  return {name: facts[name] for name in ("device", "cores", "jax", "jaxlib", "code")}


@functools.cache
def code(root: pathlib.Path, sources: Sequence[str] = SOURCES) -> str:
  """Returns a digest of the files in a clone that match the patterns."""
  digest = hashlib.sha256()
  for path in sorted(path for pattern in sources for path in root.glob(pattern)):
    digest.update(f"{path.relative_to(root)}\0".encode())
    digest.update(path.read_bytes())
  return digest.hexdigest()[:16]


def _device() -> str:
  device = jax.devices()[0]
  # The device kind of a CPU is "cpu", so the processor's name is more precise.
  is_cpu = device.platform == "cpu"
  return f"{device.platform} {prepared.processor() if is_cpu else device.device_kind}"
