"""What the doctor says of the facts: a `Finding` each, with what to do."""

import collections
import dataclasses
import re
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from specdec_t5x.demo.recipe import DemoPair
from specdec_t5x.doctor.facts import ACCELERATORS, PROVIDERS, Device

MIN_PYTHON = (3, 11)  # python_requires of setup.py
TRAINING = ("optax", "tqdm")  # the extra `train`
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


def python(version: tuple[int, ...]) -> Finding:
  """Judges Python's version."""
  value, wanted = (".".join(map(str, v)) for v in (version, MIN_PYTHON))
  if version[:2] >= MIN_PYTHON:
    return Finding("python", value)
  fix = f"make the environment with Python {wanted} or newer"
  return Finding("python", value, f"Python is {value}, expected {wanted} or newer", fix)


def project(running: str, installed: str | None, folder: str) -> Finding:
  """Judges the version of specdec_t5x that runs and the one that is installed."""
  name, value, install = "specdec_t5x", f"{running} in {folder}", "pip install -e ."
  if installed == running:
    return Finding(name, value)
  if installed is None:
    fix = f"{install} {HERE}, so that versions are compared with setup.py's"
    return Finding(name, f"{value}, not installed", fix=fix)
  problem = f"specdec_t5x {running} runs, but {installed} is installed"
  return Finding(name, value, problem, f"{install} {HERE}")


def package(name: str, version: str | None, wanted: Any = "") -> Finding:
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


def triton(version: str | None) -> list[Finding]:
  """Says, where triton is beside TensorFlow, in which order they can be imported."""
  if version is None:
    return []
  order = (
    "before TensorFlow, which specdec_t5x and t5x see to; in the other order a process "
    "that uses PyTorch aborts, so import one of them first"
  )
  return [Finding("triton", f"{version}, to be imported {order}")]


def t5x(
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


def devices(
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
  memory = lambda d: f", {gigabytes(d.memory)} each" if d.memory else ""
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


def fusions(version: str | None, platforms: Collection[str]) -> list[Finding]:
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


def products(reason: str | None, library: str | None) -> Finding:
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


def rounded(by: str | None) -> Finding:
  """Says what multiplies weights of 8 and 4 bits on this CPU.

  Args:
    by: the instructions of our own products; None where there are none.
  """
  name = "8, 4 bits"
  if by is None:
    fix = "see products: without native ones rounded weights gain nothing on a CPU"
    return Finding(name, "XLA's products, which read them as float32", fix=fix)
  return Finding(name, f"native products, by {by}")


def kept(folders: Mapping[str, int]) -> list[Finding]:
  """Says what runs leave on this machine to start sooner: bytes by folder."""
  return [
    Finding("kept", f"{size / 2**20:.1f} MiB in {folder}, made again where it is gone")
    for folder, size in folders.items()
  ]


def demo(pair: DemoPair, missing: Sequence[str]) -> Finding:
  """Says which parts of a demo pair are missing, which is no problem."""
  if not missing:
    return Finding(pair.name, "complete")
  fix = f"`{pair.command}` {HERE} makes what this demo pair lacks"
  return Finding(pair.name, f"lacks {', '.join(missing)}", fix=fix)


def gigabytes(count: int | None) -> str:
  """Returns bytes in words."""
  return f"{count / 2**30:.1f} GiB" if count else "unknown"
