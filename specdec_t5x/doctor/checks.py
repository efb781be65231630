"""Judges the facts: each check returns a `Finding`, with a fix."""

import collections
import dataclasses
import re
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from specdec_t5x.doctor.facts import ACCELERATORS, PROVIDERS, Device

MIN_PYTHON = (3, 11)  # python_requires of setup.py
TRAINING = ("optax", "tqdm")  # the extra `train`
# jaxlib releases reported to miscompile fusions of products and reductions on CPU (jax
# issues 39103, 39257, 40412): the first and the last affected release known.
MISCOMPILES = ((0, 10, 2), (0, 11, 2))
NO_FUSIONS = "XLA_FLAGS=--xla_cpu_experimental_ynn_fusion_type="
HERE = "in the repository's root"


@dataclasses.dataclass(frozen=True)
class Finding:
  """A line of the report, with a problem or a hint if there is any.

  Attributes:
    name: the checked item.
    value: the item's state.
    problem: a description of the problem; None if there is no problem.
    fix: the fix of the problem; a hint if there is no problem.
  """

  name: str
  value: str
  problem: str | None = None
  fix: str | None = None


def python(version: tuple[int, ...]) -> Finding:
  """Judges Python's version."""
  value = ".".join(map(str, version))
  wanted = ".".join(map(str, MIN_PYTHON))
  if version[:2] >= MIN_PYTHON:
    return Finding("python", value)
  fix = f"make the environment with Python {wanted} or newer"
  return Finding("python", value, f"Python is {value}, expected {wanted} or newer", fix)


def project(running: str, installed: str | None, folder: str) -> Finding:
  """Compares the running version of specdec_t5x with the installed version."""
  name = "specdec_t5x"
  value = f"{running} in {folder}"
  install = "pip install -e ."
  if installed == running:
    return Finding(name, value)
  if installed is None:
    fix = f"{install} {HERE}, so that versions are compared with setup.py's"
    return Finding(name, f"{value}, not installed", fix=fix)
  problem = f"specdec_t5x {running} runs, but {installed} is installed"
  return Finding(name, value, problem, f"{install} {HERE}")


def package(name: str, version: str | None, wanted: Any = "") -> Finding:
  """Judges a package's version by a `SpecifierSet`, or "" for any version."""
  install = f"pip install '{name}{wanted}'"
  if version is None:
    if name in TRAINING:
      return Finding(name, "not installed", fix=f"{install}, to train drafts")
    return Finding(name, "not installed", f"{name} is not installed", install)
  value = f"{version:<14} {wanted}".rstrip()
  if wanted and not wanted.contains(version, prereleases=True):
    return Finding(name, value, f"{name} is {version}, expected {wanted}", install)
  return Finding(name, value)


def triton(version: str | None) -> list[Finding]:
  """Returns the import order of triton and TensorFlow, if triton is installed."""
  if version is None:
    return []
  order = (
    "before TensorFlow, as specdec_t5x and t5x ensure; in the reverse order a process "
    "with PyTorch aborts, so import specdec_t5x or t5x first"
  )
  return [Finding("triton", f"{version}, to be imported {order}")]


def t5x(
  provider: str | None, error: str | None, installed: Sequence[str]
) -> list[Finding]:
  """Judges the active `t5x`.

  Args:
    provider: the provider's name and path; None if the import failed.
    error: the error of the import; None if the import succeeded or `t5x` is absent.
    installed: all installed packages `t5x`.
  """
  install = f"pip install ./t5x_runtime {HERE}"
  if error:
    fix = f"install the missing package, or t5x again ({install}; docs/t5x_contract.md)"
    findings = [Finding("active", "broken", f"t5x can't be imported: {error}", fix)]
  elif provider is None:
    findings = [Finding("active", "none", "there is no package t5x", install)]
  else:
    findings = [Finding("active", provider)]
  if len(installed) > 1:
    value = " and ".join(installed)
    fix = f"keep one package: pip uninstall {PROVIDERS[0]}, or {PROVIDERS[1]}"
    findings.append(Finding("installed", value, f"two packages t5x: {value}", fix))
  return findings


def devices(
  devices: Sequence[Device],
  error: str | None,
  present: Sequence[str],
  requested: str = "",
) -> list[Finding]:
  """Judges the devices that JAX runs on.

  Args:
    devices: JAX's list of devices.
    error: the reason why the list is empty; None if there are devices.
    present: the extras of the accelerators with device files on this machine.
    requested: the value of JAX_PLATFORMS.
  """
  if error:
    fix = (
      f"set JAX_PLATFORMS, now {requested!r}, to '' or install the extra of the "
      "platform"
    )
    return [Finding("devices", "none", f"JAX finds no device: {error}", fix)]
  findings = []
  for device, count in collections.Counter(devices).items():
    memory = f", {gigabytes(device.memory)} each" if device.memory else ""
    findings.append(Finding(device.platform, f"{count} x {device.kind}{memory}"))
  if any(device.platform != "cpu" for device in devices):
    flags = [f"--gin.{x}=\"'bfloat16'\"" for x in ("PARAM_DTYPE", "ACTIVATION_DTYPE")]
    fix = f"decode with {' '.join(flags)}; docs/tpu.md"
    return [*findings, Finding("dtype", "float32 by default", fix=fix)]
  findings.append(Finding("dtype", "float32 by default, right on a CPU"))
  return findings + [_unused(extra, requested) for extra in present]


def _unused(extra, requested):
  value = f"{ACCELERATORS[extra]} is there, but JAX sees a CPU only"
  if requested == "cpu":  # The user chose the CPU, so there is no problem.
    return Finding(
      extra, value, fix="unset JAX_PLATFORMS (now 'cpu') to use the device"
    )
  fix = f"pip install -e '.[{extra}]' {HERE}, and check the device's driver"
  return Finding(extra, value, value, fix)


def fusions(version: str | None, platforms: Collection[str]) -> list[Finding]:
  """Returns a hint, not a problem, if jaxlib's CPU fusions are reported to be wrong.

  Args:
    version: jaxlib's version; None if jaxlib is not installed.
    platforms: the platforms of JAX's devices.
  """
  numbers = tuple(map(int, re.findall(r"\d+", version or "")[:3]))
  first, last = MISCOMPILES
  if "cpu" not in platforms or not first <= numbers <= last:
    return []
  value = (
    f"jaxlib {version} is reported to miscompile fusions of products and reductions "
    "on CPU (YNNPACK; jax issues 39103, 39257, 40412)"
  )
  fix = f"if results look wrong, compare with {NO_FUSIONS} to turn the fusions off"
  return [Finding("fusions", value, fix=fix)]


def products(reason: str | None, library: str | None) -> Finding:
  """Returns whether products of few rows are native or XLA's; neither is a problem.

  Args:
    reason: the reason why there are no native products; None if there are.
    library: the path of the native library; None if the build failed.
  """
  if reason is None:
    return Finding("products", f"native: {library}")
  value = f"XLA's, because native products are missing: {reason}"
  fix = (
    "install a C++ compiler, or set CXX to a compiler: decoding on a CPU is faster "
    "with native products"
  )
  return Finding("products", value, fix=None if library else fix)


def rounded(instructions: str | None) -> Finding:
  """Returns how this CPU multiplies 8- and 4-bit weights; None: no native products."""
  name = "8, 4 bits"
  if instructions is None:
    fix = "see products: without native products rounded weights gain nothing on a CPU"
    return Finding(name, "XLA's products, with weights read as float32", fix=fix)
  return Finding(name, f"native products, by {instructions}")


def kept(folders: Mapping[str, int]) -> list[Finding]:
  """Returns the bytes of each folder that runs keep for a faster start."""
  return [
    Finding("kept", f"{size / 2**20:.1f} MiB in {folder}, made again if missing")
    for folder, size in folders.items()
  ]


def gigabytes(count: int | None) -> str:
  """Returns a number of bytes in GiB, as text."""
  return f"{count / 2**30:.1f} GiB" if count else "unknown"
