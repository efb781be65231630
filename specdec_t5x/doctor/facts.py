"""Facts about this machine: packages, the active `t5x`, devices, kernels.

Versions come from the packages' metadata, as importing TensorFlow takes seconds.
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
except ImportError:  # The report lists packaging as missing.
  Requirement = None

PROVIDERS = ("t5x", "specdec-t5x-runtime")  # distributions of a package t5x
# Device files, by the extra that lets JAX use the device. Newer TPUs are not detected:
# their files are in /dev/vfio, which other hardware uses, too.
ACCELERATORS = {"cuda": "/dev/nvidia[0-9]*", "tpu": "/dev/accel[0-9]*"}
# Errors of importing a broken installation: missing modules and shared libraries, and
# incompatible versions (jax and jaxlib, NumPy's ABI, protobuf's). JAX raises a
# RuntimeError or an AssertionError without the backend that JAX_PLATFORMS names.
BROKEN = (
  *(ImportError, OSError, AttributeError, RuntimeError, TypeError, ValueError),
  AssertionError,
)


@dataclasses.dataclass(frozen=True)
class Device:
  """A device in JAX's terms; `memory` is in bytes, None if JAX does not report it."""

  platform: str
  kind: str
  memory: int | None = None


def stated_ranges() -> dict[str, Any]:
  """Returns the ranges stated by specdec_t5x and jax (jaxlib), if installed."""
  jaxlib = [need for need in _needs("jax") if need.name == "jaxlib"]
  return {need.name: need.specifier for need in [*_needs("specdec_t5x"), *jaxlib]}


def _needs(name):
  if Requirement is None or version(name) is None:
    return []
  needs = map(Requirement, metadata.requires(name) or ())
  # The requirements of the extra "train" count, too.
  return [x for x in needs if not x.marker or x.marker.evaluate({"extra": "train"})]


def active_t5x() -> tuple[str | None, str | None]:
  """Imports `t5x` and returns the provider's name and path, and the import's error."""
  try:
    t5x = import_quietly("t5x")
  except BROKEN as error:
    is_absent = isinstance(error, ModuleNotFoundError) and error.name == "t5x"
    return None, None if is_absent else _first_line(error)
  return f"{getattr(t5x, 'PROVIDER', 'upstream')} in {next(iter(t5x.__path__))}", None


def installed_t5x(paths: Sequence[str]) -> list[str]:
  """Returns the folders of all packages `t5x`, or the distributions if there are more.

  There are more distributions than folders if a distribution was installed over the
  other, into the same folder.
  """
  places = dict.fromkeys(os.path.realpath(os.path.join(x, "t5x")) for x in paths)
  folders = [x for x in places if os.path.isfile(os.path.join(x, "__init__.py"))]
  distributions = [name for name in PROVIDERS if version(name)]
  return max(folders, distributions, key=len)


def jax_devices() -> tuple[list[Device], str | None]:
  """Returns JAX's devices, or no device and the first line of JAX's error."""
  try:
    devices = importlib.import_module("jax").devices()
  except BROKEN as error:
    return [], _first_line(error)
  statistics = [device.memory_stats() or {} for device in devices]
  return [
    Device(device.platform, device.device_kind, memory.get("bytes_limit"))
    for device, memory in zip(devices, statistics, strict=True)
  ], None


def native_products() -> tuple[str | None, str | None]:
  """Returns the arguments of `checks.products`; builds the native library if needed."""
  library = importlib.import_module("specdec_t5x.native.library")
  with warnings.catch_warnings(action="ignore"):  # The report has the problem.
    reason = library.problem()
  try:
    return reason, str(library.built())
  except (OSError, subprocess.SubprocessError):
    return reason, None


def kept_folders() -> dict[str, int]:
  """Returns the bytes of the folders of kept measurements, libraries and programs."""
  folders = []
  # `checks.products` reports a missing home folder.
  with contextlib.suppress(OSError):
    folders.append(importlib.import_module("specdec_t5x.native.library").folder())
  programs = os.environ.get("JAX_COMPILATION_CACHE_DIR")
  if programs is None:
    with contextlib.suppress(OSError):
      folders.append(importlib.import_module("specdec_t5x.programs").folder())
    # `checks.t5x` reports a broken t5x. Upstream T5X keeps no programs.
    with contextlib.suppress(*BROKEN):
      programs = importlib.import_module("t5x.kept_programs").folder()
  if programs:
    folders.append(pathlib.Path(programs))
  sizes = {}
  for folder in filter(pathlib.Path.is_dir, folders):
    files = (path for path in folder.glob("*") if path.is_file())
    sizes[str(folder)] = sum(path.stat().st_size for path in files)
  return sizes


def version(name: str) -> str | None:
  """Returns a distribution's version; None if the distribution is not installed."""
  try:
    return metadata.version(name)
  except metadata.PackageNotFoundError:
    return None


def memory() -> int | None:
  """Returns the bytes of the machine's memory; None if unknown."""
  try:
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
  except (AttributeError, ValueError, OSError):  # Some systems lack `sysconf`.
    return None


def _first_line(error):
  return f"{type(error).__name__}: {error}".splitlines()[0].rstrip(": ")
