"""The environment of a run: versions, devices, kernels and memory.

`python -m specdec_t5x` prints the report of this machine.
"""

import collections
import contextlib
import os
import platform
import warnings
from collections.abc import Iterator, Mapping, Sequence
from importlib import metadata
from typing import Any

import jax
import jax.numpy as jnp

import specdec_t5x
from specdec_t5x.native import library
from specdec_t5x.native.cuda import library as cuda_library
from specdec_t5x.platforms import check_platform
from specdec_t5x.quiet import import_quietly
from specdec_t5x.tuning import Job

RUN_PACKAGES = ("jax", "jaxlib", "flax", "seqio", "orbax-checkpoint")
ALL_PACKAGES = (*RUN_PACKAGES, "numpy", "gin-config", "tensorflow", "sentencepiece")
# Errors of importing a missing or broken installation.
_BROKEN = ImportError, OSError, AttributeError, RuntimeError, TypeError, ValueError
# The caches of texts of up to `_USUAL` tokens are assumed to fit: tracing takes time.
_USUAL = 4096


def versions(packages: Sequence[str]) -> dict[str, str | None]:
  """Returns the versions of packages; None for packages that are not installed."""
  found = dict.fromkeys(packages)
  for name in packages:
    with contextlib.suppress(metadata.PackageNotFoundError):
      found[name] = metadata.version(name)
  return found


def of_run() -> dict[str, Any]:
  """Returns a run's T5X provider, versions, device and products (PRODUCTS=auto)."""
  device = jax.devices()[0]
  facts = {"platform": device.platform, "kind": device.device_kind}
  return {
    "t5x": getattr(import_quietly("t5x"), "PROVIDER", "upstream"),
    "versions": {"specdec_t5x": specdec_t5x.__version__, **versions(RUN_PACKAGES)},
    "device": {**facts, "count": jax.device_count()},
    "products": library.problem() or "native",
  }


def report() -> list[str]:
  """Returns a line per fact: versions, devices, and kernels or why there are none."""
  facts = {
    "python": f"{platform.python_version()} on {platform.platform()}",
    "specdec_t5x": f"{specdec_t5x.__version__} in {specdec_t5x.__path__[0]}",
    **{name: number or "missing" for name, number in versions(ALL_PACKAGES).items()},
  }
  try:
    t5x = import_quietly("t5x")
    provider = getattr(t5x, "PROVIDER", "upstream")
    facts["t5x"] = f"{provider} in {next(iter(t5x.__path__))}"
  except _BROKEN as error:
    facts["t5x"] = f"missing: {type(error).__name__}: {error}"
  try:
    check_platform()
    kinds = collections.Counter((x.platform, x.device_kind) for x in jax.devices())
    devices = ", ".join(f"{count} x {' '.join(kind)}" for kind, count in kinds.items())
    facts |= {"devices": devices, "memory": f"{of_device() or 0:,} bytes"}
    with warnings.catch_warnings(action="ignore"):  # The report has the reason.
      problem = library.problem()
    facts["CPU kernels"] = f"missing: {problem}" if problem else str(library.built())
    facts["8 and 4 bits"] = "XLA's products" if problem else library.bytes_by()
    problem = cuda_library.problem()
    facts["GPU kernels"] = (
      f"missing: {problem}" if problem else str(cuda_library.built())
    )
  except ValueError as error:
    facts["devices"] = f"missing: {error}"
  column = max(map(len, facts)) + 2
  return [f"{name:<{column}}{value}" for name, value in facts.items()]


def check_fits(job: Job, params: Mapping[str, Any]) -> None:
  """Raises a ValueError if the caches of a decode exceed the device's memory."""
  if job.max_length + job.input_length <= _USUAL:
    return
  available = of_device()
  needed = of_caches(job, params) if available else 0
  if available and needed > available:
    raise ValueError(
      f"max_length={job.max_length} needs {needed:,} bytes for the caches and tokens "
      f"of {job.rows_at_once} rows at once, but the device has {available:,}. Lower "
      "max_length or batch_size."
    )


@contextlib.contextmanager
def check_full() -> Iterator[None]:
  """Turns a device's out-of-memory error into a ValueError with a fix."""
  try:
    yield
  except jax.errors.JaxRuntimeError as error:
    if "RESOURCE_EXHAUSTED" not in str(error):
      raise
    reason = str(error).splitlines()[0].removesuffix(".")
    raise ValueError(
      f"The device's memory is full: {reason}. Lower batch_size or max_length, or set "
      "dtype='bfloat16'."
    ) from error


def of_caches(job: Job, params: Mapping[str, Any]) -> int:
  """Returns the bytes of a decode's state; the caches have room for all tokens."""
  rows = job.rows_at_once
  inputs = jax.ShapeDtypeStruct((rows, job.input_length), jnp.int32)
  keys = jax.eval_shape(lambda: jax.random.split(jax.random.key(0), rows))

  def start(params, inputs, keys):
    settings = {"sampling": job.sampling, "max_length": job.max_length}
    # Shapes don't depend on the end token.
    ctx = job.decoder.context(params, rows, **settings, eos_id=1)
    return ctx.first_state(inputs, keys)

  shapes = jax.tree.leaves(jax.eval_shape(start, params, inputs, keys))
  arrays = [x for x in shapes if not jnp.issubdtype(x.dtype, jax.dtypes.prng_key)]
  # The sum is of Python's integers, as sizes may exceed 64 bits.
  return sum(x.size * x.dtype.itemsize for x in arrays)


def of_device() -> int | None:
  """Returns the bytes of the device's memory, else of the machine's; None: unknown."""
  limit = (jax.local_devices()[0].memory_stats() or {}).get("bytes_limit")
  if limit is not None:
    return limit
  try:
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
  except (AttributeError, ValueError, OSError):  # Some systems lack `sysconf`.
    return None
