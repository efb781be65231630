"""Says whether this machine can run the project: `python -m specdec_t5x.doctor`.

Prints versions, devices, the active `t5x` and the demo pairs, then a line for each
problem with what to do. Exits with 0 where there is no problem, else with 1. Versions
come from the packages' metadata: TensorFlow alone would take seconds to import.

The functions `check_*` judge facts; those that gather the facts follow them.
"""

import collections
import contextlib
import dataclasses
import glob
import importlib
import os
import pathlib
import platform
import re
import subprocess
import sys
import textwrap
import warnings
from collections.abc import Collection, Mapping, Sequence
from importlib import metadata
from typing import Any

import specdec_t5x
from specdec_t5x.demo.recipe import PAIRS, DemoPair
from specdec_t5x.quiet import import_quietly

try:
  from packaging.requirements import Requirement
except ImportError:  # It is in PACKAGES, so the report says that it is missing.
  Requirement = None

MIN_PYTHON = (3, 11)  # python_requires of setup.py
PACKAGES = (
  *("jax", "jaxlib", "flax", "optax", "seqio", "gin-config", "tensorflow"),
  *("tensorflow-datasets", "orbax-checkpoint", "sentencepiece", "packaging"),
  "safetensors",
)
TRAINING = ("optax", "tqdm")  # the extra `train`
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
# jaxlib releases reported to miscompile fusions of products and reductions on CPU (jax
# issues 39103, 39257, 40412): the first, and the last that is known to.
MISCOMPILES = ((0, 10, 2), (0, 11, 2))
NO_FUSIONS = "XLA_FLAGS=--xla_cpu_experimental_ynn_fusion_type="
HERE = "in the repository's root"


@dataclasses.dataclass(frozen=True)
class Finding:
  """What was found out about one thing.

  Attributes:
    name: of the thing.
    value: what was found.
    problem: what is wrong with it; None where nothing is.
    fix: what to do; a hint where there is no problem.
  """

  name: str
  value: str
  problem: str | None = None
  fix: str | None = None


@dataclasses.dataclass(frozen=True)
class Device:
  """A device as JAX sees it; `memory` is in bytes, None where JAX does not say."""

  platform: str
  kind: str
  memory: int | None = None


def check_python(version: tuple[int, ...]) -> Finding:
  """Judges Python's version."""
  value, wanted = (".".join(map(str, v)) for v in (version, MIN_PYTHON))
  if version[:2] >= MIN_PYTHON:
    return Finding("python", value)
  fix = f"make the environment with Python {wanted} or newer"
  return Finding("python", value, f"Python is {value}, expected {wanted} or newer", fix)


def check_project(running: str, installed: str | None, folder: str) -> Finding:
  """Judges the version of specdec_t5x that runs and the one that is installed."""
  name, value, install = "specdec_t5x", f"{running} in {folder}", "pip install -e ."
  if installed == running:
    return Finding(name, value)
  if installed is None:
    fix = f"{install} {HERE}, so that versions are compared with setup.py's"
    return Finding(name, f"{value}, not installed", fix=fix)
  problem = f"specdec_t5x {running} runs, but {installed} is installed"
  return Finding(name, value, problem, f"{install} {HERE}")


def check_package(name: str, version: str | None, wanted: Any = "") -> Finding:
  """Judges a package: its version, and a `SpecifierSet` where one is stated."""
  install = f"pip install '{name}{wanted}'"
  if version is None:
    if name in TRAINING:
      return Finding(name, "not installed", fix=f"{install}, to train drafts")
    return Finding(name, "not installed", f"{name} is not installed", install)
  value = f"{version:<14} {wanted}".rstrip()
  if wanted and not wanted.contains(version, prereleases=True):
    return Finding(name, value, f"{name} is {version}, expected {wanted}", install)
  return Finding(name, value)


def check_triton(version: str | None) -> list[Finding]:
  """Says, where triton is beside TensorFlow, in which order they can be imported."""
  if version is None:
    return []
  order = (
    "before TensorFlow, which specdec_t5x and t5x see to; in the other order a process "
    "that uses PyTorch aborts, so import one of them first"
  )
  return [Finding("triton", f"{version}, to be imported {order}")]


def check_t5x(
  provider: str | None, error: str | None, installed: Sequence[str]
) -> list[Finding]:
  """Judges the active `t5x`.

  Args:
    provider: its name and path; None where it can't be imported.
    error: of the import; None where it went well, or there is no `t5x`.
    installed: every `t5x` there is.
  """
  install = f"pip install ./t5x_runtime {HERE}"
  if error:
    fix = f"install what it lacks, or it again ({install}; docs/t5x_contract.md)"
    found = [Finding("active", "broken", f"t5x can't be imported: {error}", fix)]
  elif provider is None:
    found = [Finding("active", "none", "there is no package t5x", install)]
  else:
    found = [Finding("active", provider)]
  if len(installed) > 1:
    value = " and ".join(installed)
    fix = f"keep one of them: pip uninstall {PROVIDERS[0]}, or {PROVIDERS[1]}"
    found.append(Finding("installed", value, f"two packages t5x: {value}", fix))
  return found


def check_devices(
  devices: Sequence[Device],
  error: str | None,
  present: Sequence[str],
  requested: str = "",
) -> list[Finding]:
  """Judges what JAX runs on.

  Args:
    devices: as JAX lists them.
    error: why there are none.
    present: extras of the accelerators whose device files are there.
    requested: JAX_PLATFORMS.
  """
  if error:
    fix = f"set JAX_PLATFORMS, now {requested!r}, to '' or install the extra it needs"
    return [Finding("devices", "none", f"JAX finds no device: {error}", fix)]
  counts = collections.Counter(devices)
  memory = lambda d: f", {_gigabytes(d.memory)} each" if d.memory else ""
  found = [
    Finding(d.platform, f"{count} x {d.kind}{memory(d)}") for d, count in counts.items()
  ]
  if any(device.platform != "cpu" for device in devices):
    flags = [f"--gin.{x}=\"'bfloat16'\"" for x in ("PARAM_DTYPE", "ACTIVATION_DTYPE")]
    fix = f"decode with {' '.join(flags)}; docs/tpu.md"
    return [*found, Finding("dtype", "float32 by default", fix=fix)]
  found.append(Finding("dtype", "float32 by default, which is right on a CPU"))
  return found + [_unused(extra, requested) for extra in present]


def _unused(extra, requested):
  value = f"{ACCELERATORS[extra]} is there, but JAX sees a CPU only"
  if requested == "cpu":  # Asked for.
    return Finding(extra, value, fix="unset JAX_PLATFORMS, which is 'cpu', to use it")
  fix = f"pip install -e '.[{extra}]' {HERE}, and check the device's driver"
  return Finding(extra, value, value, fix)


def check_fusions(version: str | None, platforms: Collection[str]) -> list[Finding]:
  """Says where XLA's fusions on CPU are not to be relied on; no problem for certain.

  Args:
    version: of jaxlib; None where it is not installed.
    platforms: of JAX's devices.
  """
  numbers = tuple(map(int, re.findall(r"\d+", version or "")[:3]))
  first, last = MISCOMPILES
  if "cpu" not in platforms or not first <= numbers <= last:
    return []
  value = (
    f"jaxlib {version} is reported to miscompile fusions of products and reductions "
    "on CPU (YNNPACK; jax issues 39103, 39257, 40412)"
  )
  fix = f"if results look wrong, compare with {NO_FUSIONS}, which turns them off"
  return [Finding("fusions", value, fix=fix)]


def check_products(reason: str | None, library: str | None) -> Finding:
  """Says whose products of few rows are; it is no problem where they are XLA's.

  Args:
    reason: why there are none of our own; None where there are.
    library: the path of ours; None where it could not be built.
  """
  if reason is None:
    return Finding("products", f"native: {library}")
  value = f"XLA's, for there are no native ones: {reason}"
  fix = "install a C++ compiler, or name one in CXX: decoding on a CPU is faster by it"
  return Finding("products", value, fix=None if library else fix)


def check_rounded(by: str | None) -> Finding:
  """Says what multiplies weights of 8 and 4 bits on this CPU.

  Args:
    by: the instructions of our own products; None where there are none.
  """
  name = "8, 4 bits"
  if by is None:
    fix = "see products: without native ones rounded weights gain nothing on a CPU"
    return Finding(name, "XLA's products, which read them as float32", fix=fix)
  return Finding(name, f"native products, by {by}")


def check_kept(folders: Mapping[str, int]) -> list[Finding]:
  """Says what runs leave on this machine to start sooner: bytes by folder."""
  return [
    Finding("kept", f"{size / 2**20:.1f} MiB in {folder}, made again where it is gone")
    for folder, size in folders.items()
  ]


def check_demo(pair: DemoPair, missing: Sequence[str]) -> Finding:
  """Says which parts of a demo pair are missing, which is no problem."""
  if not missing:
    return Finding(pair.name, "complete")
  fix = f"`{pair.command}` {HERE} makes what this demo pair lacks"
  return Finding(pair.name, f"lacks {', '.join(missing)}", fix=fix)


def render(sections: Mapping[str, Sequence[Finding]]) -> list[str]:
  """Returns the report: sections in columns, then hints, then problems."""
  findings = [finding for part in sections.values() for finding in part]
  column = max(len(finding.name) for finding in findings) + 4
  lines = []
  for title, part in sections.items():
    lines += [title, *(line for x in part for line in _columns(x, column)), ""]
  lines += [f"hint: {x.name} -> {x.fix}" for x in findings if x.fix and not x.problem]
  problems = [f"problem: {x.problem} -> {x.fix}" for x in findings if x.problem]
  return lines + (problems or ["no problem found"])


def _columns(finding, column):
  first, rest = f"  {finding.name}".ljust(column), " " * column
  whole = {"break_long_words": False, "break_on_hyphens": False}  # As paths are.
  return textwrap.TextWrapper(88, first, rest, **whole).wrap(finding.value)


def examine() -> dict[str, list[Finding]]:
  """Returns what there is to say about this machine, by section."""
  ranges, root = stated_ranges(), os.getcwd()
  code = os.path.dirname(os.path.dirname(os.path.abspath(specdec_t5x.__file__)))
  names = dict.fromkeys([*PACKAGES, *ranges])
  present = [extra for extra, files in ACCELERATORS.items() if glob.glob(files)]
  requested = os.environ.get("JAX_PLATFORMS", "")
  devices, error = jax_devices()
  platforms = {device.platform for device in devices}
  return {
    "machine": [
      check_python(sys.version_info[:3]),
      Finding("platform", platform.platform()),
      Finding("cores", str(os.cpu_count())),
      Finding("memory", _gigabytes(_memory())),
    ],
    "packages": [
      check_project(specdec_t5x.__version__, _version("specdec_t5x"), code),
      *(check_package(name, _version(name), ranges.get(name, "")) for name in names),
      *check_triton(_version("triton")),
    ],
    "t5x": check_t5x(*active_t5x(), installed_t5x(sys.path)),
    "devices": [
      *check_devices(devices, error, present, requested),
      *check_fusions(_version("jaxlib"), platforms),
      *(_products() if "cpu" in platforms else ()),
      *check_kept(kept_folders()),
    ],
    f"demo pairs in {root}": [check_demo(x, x.missing(root)) for x in PAIRS.values()],
  }


def stated_ranges() -> dict[str, Any]:
  """Returns what specdec_t5x asks for where it is installed, and jax of jaxlib."""
  of_jax = [need for need in _needs("jax") if need.name == "jaxlib"]
  return {need.name: need.specifier for need in [*_needs("specdec_t5x"), *of_jax]}


def _needs(name):
  if Requirement is None or _version(name) is None:
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
  distributions = [name for name in PROVIDERS if _version(name)]
  return max(list(filter(exists, dict.fromkeys(folders))), distributions, key=len)


def jax_devices() -> tuple[list[Device], str | None]:
  """Returns JAX's devices, and why there are none."""
  try:
    devices = importlib.import_module("jax").devices()
  except BROKEN as error:
    return [], _first_line(error)
  limit = lambda device: (device.memory_stats() or {}).get("bytes_limit")
  return [Device(d.platform, d.device_kind, limit(d)) for d in devices], None


def _products() -> list[Finding]:
  reason, path = native_products()
  library = importlib.import_module("specdec_t5x.native.library")
  by = library.bytes_by() if reason is None else None
  return [check_products(reason, path), check_rounded(by)]


def native_products() -> tuple[str | None, str | None]:
  """Returns what `check_products` judges; builds the products if they are not yet."""
  library = importlib.import_module("specdec_t5x.native.library")
  with warnings.catch_warnings(action="ignore"):  # The report says it.
    reason = library.problem()
  try:
    return reason, str(library.built())
  except (OSError, subprocess.SubprocessError):
    return reason, None


def kept_folders() -> dict[str, int]:
  """Returns what `check_kept` judges: where something is measured or compiled once."""
  folders = []
  with contextlib.suppress(OSError):  # `check_products` reports that there is no home.
    folders.append(importlib.import_module("specdec_t5x.native.library").folder())
  programs = os.environ.get("JAX_COMPILATION_CACHE_DIR")
  if programs is None:
    # `check_t5x` reports it; upstream T5X keeps none.
    with contextlib.suppress(*BROKEN):
      programs = importlib.import_module("t5x.kept_programs").folder()
  folders += [pathlib.Path(programs)] if programs else []
  size = lambda folder: sum(x.stat().st_size for x in folder.glob("*") if x.is_file())
  return {str(folder): size(folder) for folder in folders}


def _version(name):
  try:
    return metadata.version(name)
  except metadata.PackageNotFoundError:
    return None


def _memory():
  try:
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
  except (AttributeError, ValueError, OSError):  # Not known on every system.
    return None


def _gigabytes(count):
  return f"{count / 2**30:.1f} GiB" if count else "unknown"


def _first_line(error):
  return f"{type(error).__name__}: {error}".splitlines()[0].rstrip(": ")


def main() -> int:
  """Prints the report; returns 1 where there is a problem, else 0."""
  # Before JAX and TensorFlow load: no log, and no claim on most of a GPU's memory.
  os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
  os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
  sections = examine()
  print("\n".join(render(sections)))
  return int(any(x.problem for part in sections.values() for x in part))


if __name__ == "__main__":
  sys.exit(main())
