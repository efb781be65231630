"""Checks that a decode fits in the device's memory."""

import contextlib
import os
from collections.abc import Iterator, Mapping
from typing import Any

import jax
import jax.numpy as jnp

from specdec_t5x.tuning import Job

# The caches of texts of up to `_USUAL` tokens are assumed to fit: tracing takes time.
_USUAL = 4096
# An arbitrary token, as shapes don't depend on the end token.
_EOS = 1
# The bytes of each job's state, kept because finding the size takes a trace.
_bytes: dict[Job, int] = {}


def check_fits(job: Job, params: Mapping[str, Any]) -> None:
  """Raises a ValueError if a decode's caches exceed the device's memory.

  Args:
    job: the decode.
    params: the parameters of the decoder's networks.
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
  """Turns a device's out-of-memory error into a ValueError with a fix."""
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
  """Returns the bytes of a decode's state; the caches have room for all tokens."""
  # The networks of a job determine the shapes of the parameters.
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
  shapes = jax.eval_shape(leaves, params, inputs, keys)
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
