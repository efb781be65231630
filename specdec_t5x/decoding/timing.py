"""What iterations take on this device, measured once and kept.

The numbers decide how many tokens are drafted, never what the outputs' law is. They are
measured with zeros for parameters: times do not depend on values, but for where inputs
are empty.
"""

import concurrent.futures
import hashlib
import json
import os
import pathlib
import platform
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from specdec_t5x.core.checks import is_finite
from specdec_t5x.core.distributions import Sampling
from specdec_t5x.decoding.generate import at_most, generate
from specdec_t5x.native import library

# The most iterations of a draft in a round; of none, by which all others are judged and
# which is quick, more.
_ITERATIONS, _PLAIN = 5, 20
# Rounds: so many at least, as many as take these seconds, and no more than the last.
_LEAST, _SECONDS, _MOST = 5, 2.0, 35
_NEVER = -1  # No token ends a sequence that is timed.

# What was measured or read in this process, and what decodes went by, for the record.
_measured: dict[str, tuple[float, ...]] = {}
_asked: dict[str, dict[str, Any]] = {}


def seconds(
  decoder_told: Callable[[Any], Any],
  amounts: Sequence[int],
  arguments: Sequence[Any],
  sampling: Sampling,
  max_length: int,
) -> tuple[float, ...]:
  """Returns the seconds of an iteration that drafts each of these amounts in each row.

  From this process's memory, or the disk's, where the same decode was timed before on
  such a device.

  Args:
    decoder_told: from an amount, a number or an argument of a program, to the decoder
      that always drafts as much.
    amounts: of drafted tokens; or 0 for none and 1 for all.
    arguments: params, inputs and keys of a decode; shapes are all that is read.
    sampling: the adjustment of all laws.
    max_length: room for an output, in tokens.

  Returns:
    A time each; none where there are several devices (processes would find others,
    and compile other programs), or no room for a second set of parameters.
  """
  if jax.device_count() > 1:
    say("Times are of one device: drafting GAMMA tokens.")
    return ()
  shapes = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype), arguments)
  subject = repr(
    (decoder_told(0), tuple(amounts), shapes, sampling, max_length, _device())
  )
  name = hashlib.sha256(subject.encode()).hexdigest()[:16]
  if name not in _measured:
    _measured[name] = _read(name, len(amounts)) or _measure_and_keep(
      name, decoder_told, amounts, shapes, sampling, max_length
    )
  found = _measured[name]
  about = {"rows": arguments[2].shape[0], "drafted": list(amounts)}
  _asked[name] = {**about, "seconds": list(found)}
  return found


def asked_for() -> list[dict[str, Any]]:
  """Returns the times that decodes of this process went by, for the record."""
  return list(_asked.values())


def say(message: str) -> None:
  """Tells who runs the program something, a line on stderr."""
  print(message, file=sys.stderr, flush=True)


def _measure_and_keep(name, *job):
  try:
    # In a thread of its own: this one may be tracing the decode.
    with concurrent.futures.ThreadPoolExecutor(1) as thread:
      found = thread.submit(_measure, *job).result()
    _keep(name, found)
  except jax.errors.JaxRuntimeError as error:
    # Parameters lie there already, and are made once more for this.
    if "RESOURCE_EXHAUSTED" not in str(error):
      raise
    say(
      "The device has no room to time drafts beside the model: drafting GAMMA tokens."
    )
    return ()
  except OSError as error:
    say(f"Measured times are for this process alone: {error}")
  return found


def _keep(name, found):
  """Writes the file, whole or not at all."""
  path = _path(name)
  path.parent.mkdir(parents=True, exist_ok=True)
  partial = path.with_suffix(f".{os.getpid()}.tmp")
  partial.write_text(json.dumps({"seconds": found}))
  partial.replace(path)


def _measure(decoder_told, amounts, shapes, sampling, max_length) -> tuple[float, ...]:
  start, run = _programs(decoder_told, sampling, max_length)

  def lasts(amount, count):
    begin = time.perf_counter()
    run(arguments, jnp.int32(amount), state, jnp.int32(count)).block_until_ready()
    return time.perf_counter() - begin

  with jax.enable_x64(False):
    params, inputs, keys = jax.tree.map(_zeros, shapes)
    # Full of content: attention skips what is empty, which would flatter blocks.
    arguments = params, jnp.ones_like(inputs), keys
    state = start(arguments, jnp.int32(amounts[0]))
    # Zeros accept all, so each iteration takes as much of the room as it can.
    taken = decoder_told(amounts[0]).drafter.depth + 1
    many = max(1, min(_ITERATIONS, (max_length - 1) // taken))
    counts = [many if n else min(_PLAIN, max_length - 1) for n in amounts]
    jobs = [(amounts[0], 0), *zip(amounts, counts, strict=True)]
    lasts(*jobs[1]), lasts(*jobs[-1])
    rounds, end = [], time.perf_counter() + _SECONDS
    while len(rounds) < _LEAST or (len(rounds) < _MOST and time.perf_counter() < end):
      rounds.append([lasts(*job) for job in jobs])
  return _slopes(np.array(rounds), counts)


def _programs(decoder_told, sampling, max_length):
  """Returns what makes a decode's first state, and what iterates from it."""

  @jax.jit
  def start(arguments, amount):
    return decoder_told(amount).prepare(*arguments, sampling, max_length, _NEVER)[1]

  @jax.jit
  def run(arguments, amount, state, count):
    # How to step alone is used: inputs, which may take longer to read, are not read.
    spec, _ = decoder_told(amount).prepare(*arguments, sampling, max_length, _NEVER)
    return generate(spec, state, at_most(count)).scores

  return start, run


def _slopes(
  rounds: Float[np.ndarray, "R K"], counts: Sequence[int]
) -> tuple[float, ...]:
  """Returns the seconds of an iteration of each kind, of the first one's by the median.

  Machines are faster at one time than at another, by two: what is compared is of one
  round. The least times, of different rounds, scatter no less the more there are.

  Args:
    rounds: seconds of a call without iterations, and of one with iterations of a kind.
    counts: of these iterations.
  """
  # Noise may say less than nothing of what is nearly free.
  slopes = np.maximum((rounds[:, 1:] - rounds[:, :1]) / counts, 1e-7)
  ratios = np.median(slopes / slopes[:, :1], axis=0)
  return tuple((np.median(slopes[:, 0]) * ratios).round(7).tolist())


def _zeros(shape):
  if jnp.issubdtype(shape.dtype, jax.dtypes.prng_key):
    return jax.random.split(jax.random.key(0), shape.shape)
  return jnp.zeros(shape.shape, shape.dtype)


def _path(name: str) -> pathlib.Path:
  return library.folder() / f"seconds-{name}.json"


def _read(name: str, count: int) -> tuple[float, ...] | None:
  """Returns what was kept; None where there is nothing, or nothing of use."""
  try:
    found = tuple(json.loads(_path(name).read_text())["seconds"])
  except (OSError, ValueError, KeyError, TypeError):
    return None
  are_times = all(is_finite(each) and each > 0 for each in found)
  return found if are_times and len(found) == count else None


def _device() -> tuple[str, ...]:
  """Returns what times depend on beside the program."""
  device = jax.devices()[0]
  flags = os.environ.get("XLA_FLAGS", "")
  kernels = library.problem() or library.code().decode()
  return (
    device.device_kind,
    _processor(),
    str(library.cpus()),
    jax.__version__,
    flags,
    kernels,
  )


def _processor() -> str:
  try:
    lines = pathlib.Path("/proc/cpuinfo").read_text().splitlines()
  except OSError:
    return platform.processor()
  return next((line for line in lines if line.startswith("model name")), "")
