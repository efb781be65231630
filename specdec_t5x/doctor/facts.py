"""What there is on this machine: packages, the active `t5x`, devices, kernels.

Versions come from the packages' metadata: importing TensorFlow takes seconds.
"""

import contextlib
import dataclasses
import importlib
import os
import pathlib
import subprocess
import warnings
from collections.abc import Sequence
from importlib import metadata
from typing import Any

from specdec_t5x.quiet import import_quietly

try:
  from packaging.requirements import Requirement
except ImportError:  # The report says that it is missing.
  Requirement = None

PROVIDERS = ("t5x", "specdec-t5x-runtime")  # distributions of a package t5x
# Device files, by the extra that lets JAX use the device. Newer TPUs appear under
# /dev/vfio, as other hardware does, so there is no telling.
ACCELERATORS = {"cuda": "/dev/nvidia[0-9]*", "tpu": "/dev/accel[0-9]*"}
# What importing a broken installation raises: missing modules and shared libraries, and
# versions that refuse each other (jax and jaxlib, NumPy's ABI, protobuf's). JAX without
# the backend that JAX_PLATFORMS names: RuntimeError or AssertionError.
BROKEN = (
  *(ImportError, OSError, AttributeError, RuntimeError, TypeError, ValueError),
  AssertionError,
)


@dataclasses.dataclass(frozen=True)
class Device:
  """A device as JAX sees it; `memory` is in bytes, None where JAX does not say."""

  platform: str
  kind: str
  memory: int | None = None


def stated_ranges() -> dict[str, Any]:
  """Returns what specdec_t5x asks for where it is installed, and jax of jaxlib."""
  of_jax = [need for need in _needs("jax") if need.name == "jaxlib"]
  return {need.name: need.specifier for need in [*_needs("specdec_t5x"), *of_jax]}


def _needs(name):
  if Requirement is None or version(name) is None:
    return []
  needs = map(Requirement, metadata.requires(name) or ())
  # "train" keeps that extra's beside those of every use.
  return [x for x in needs if not x.marker or x.marker.evaluate({"extra": "train"})]


def active_t5x() -> tuple[str | None, str | None]:
  """Imports `t5x`; returns its name and path, and why it can't be imported."""
  try:
    t5x = import_quietly("t5x")
  except BROKEN as error:
    is_absent = isinstance(error, ModuleNotFoundError) and error.name == "t5x"
    return None, None if is_absent else _first_line(error)
  return f"{getattr(t5x, 'PROVIDER', 'upstream')} in {next(iter(t5x.__path__))}", None


def installed_t5x(paths: Sequence[str]) -> list[str]:
  """Returns the folders of all packages `t5x`, or the distributions if those are more.

  They are more where one was installed over the other, into the same folder.
  """
  folders = [os.path.realpath(os.path.join(path, "t5x")) for path in paths]
  exists = lambda folder: os.path.isfile(os.path.join(folder, "__init__.py"))
  distributions = [name for name in PROVIDERS if version(name)]
  return max(list(filter(exists, dict.fromkeys(folders))), distributions, key=len)


def jax_devices() -> tuple[list[Device], str | None]:
  """Returns JAX's devices, and why there are none."""
  try:
    devices = importlib.import_module("jax").devices()
  except BROKEN as error:
    return [], _first_line(error)
  limit = lambda device: (device.memory_stats() or {}).get("bytes_limit")
  return [Device(d.platform, d.device_kind, limit(d)) for d in devices], None


def native_products() -> tuple[str | None, str | None]:
  """Returns what `checks.products` judges; builds the products if they are not yet."""
  library = importlib.import_module("specdec_t5x.native.library")
  with warnings.catch_warnings(action="ignore"):  # The report says it.
    reason = library.problem()
  try:
    return reason, str(library.built())
  except (OSError, subprocess.SubprocessError):
    return reason, None


def kept_folders() -> dict[str, int]:
  """Returns what `checks.kept` judges: where something is measured or compiled once."""
  folders = []
  with contextlib.suppress(OSError):  # `checks.products` reports that there is no home.
    folders.append(importlib.import_module("specdec_t5x.native.library").folder())
  programs = os.environ.get("JAX_COMPILATION_CACHE_DIR")
  if programs is None:
    # `checks.t5x` reports it; upstream T5X keeps none.
    with contextlib.suppress(*BROKEN):
      programs = importlib.import_module("t5x.kept_programs").folder()
  folders += [pathlib.Path(programs)] if programs else []
  size = lambda folder: sum(x.stat().st_size for x in folder.glob("*") if x.is_file())
  return {str(folder): size(folder) for folder in folders}


def version(name: str) -> str | None:
  """Returns a distribution's version; None where it is not installed."""
  try:
    return metadata.version(name)
  except metadata.PackageNotFoundError:
    return None


def memory() -> int | None:
  """Returns the machine's bytes of memory; None where the system does not say."""
  try:
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
  except (AttributeError, ValueError, OSError):  # Not known on every system.
    return None


def _first_line(error):
  return f"{type(error).__name__}: {error}".splitlines()[0].rstrip(": ")
