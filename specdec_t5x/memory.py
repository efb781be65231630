"""Whether a decode fits in a device's memory."""

import contextlib
import os
from collections.abc import Iterator, Mapping
from typing import Any

import jax
import jax.numpy as jnp

from specdec_t5x.tuning import Job

# Texts of up to so many tokens fit wherever their networks do, and a trace takes time.
_USUAL = 4096
# Any token: shapes don't depend on it.
_EOS = 1
# Bytes of each job's state: they take a trace to find.
_bytes: dict[Job, int] = {}


def check_fits(job: Job, params: Mapping[str, Any]) -> None:
  """Raises a ValueError where a decode's caches take more than the device's memory.

  Args:
    job: what is to be decoded.
    params: of the decoder's networks.
  """
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
  """Turns a device's error that its memory is full into a ValueError that helps."""
  try:
    yield
  except jax.errors.JaxRuntimeError as error:
    if "RESOURCE_EXHAUSTED" not in str(error):
      raise
    reason = str(error).splitlines()[0].removesuffix(".")
    raise ValueError(
      f"The device's memory is full: {reason}. Lower BATCH_SIZE or "
      "TASK_FEATURE_LENGTHS, or set PARAM_DTYPE='bfloat16'."
    ) from error


def of_caches(job: Job, params: Mapping[str, Any]) -> int:
  """Returns the bytes of a decode's state, whose caches have room for all tokens."""
  # A job's networks give the shapes of its parameters.
  if job not in _bytes:
    _bytes[job] = _measured(job, params)
  return _bytes[job]


def _measured(job: Job, params: Any) -> int:
  def leaves(params, inputs, keys):
    _, state = job.decoder.prepare(
      params, inputs, keys, job.sampling, job.max_length, _EOS
    )
    return jax.tree.leaves(state)

  rows = job.rows_at_once
  inputs = jax.ShapeDtypeStruct((rows, job.input_length), jnp.int32)
  keys = jax.eval_shape(lambda: jax.random.split(jax.random.key(0), rows))
  found = jax.eval_shape(leaves, params, inputs, keys)
  # Python's integers: the sizes may be beyond 64 bits.
  arrays = [x for x in found if not jnp.issubdtype(x.dtype, jax.dtypes.prng_key)]
  return sum(x.size * x.dtype.itemsize for x in arrays)


def of_device() -> int | None:
  """Returns the bytes of a device's memory; None where nobody says."""
  limit = (jax.local_devices()[0].memory_stats() or {}).get("bytes_limit")
  if limit is not None:
    return limit
  try:
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
  except (AttributeError, ValueError, OSError):  # Not known on every system.
    return None
