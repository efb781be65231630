"""What iterations take on this device: measured before a decode is compiled, and kept.

The numbers decide how many tokens are drafted, never what the outputs' distribution is.
They are measured with the parameters and the batch's shape that are to be decoded with.
"""

import dataclasses
import hashlib
import json
import os
import pathlib
import platform
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from specdec_t5x import console
from specdec_t5x.core.checks import is_finite
from specdec_t5x.core.distributions import Sampling
from specdec_t5x.decoding.cost_aware import CostAware
from specdec_t5x.decoding.decoders import Decoder, SpeculativeDecoder
from specdec_t5x.decoding.generate import at_most, generate
from specdec_t5x.decoding.policy import Fixed
from specdec_t5x.decoding.state import row_keys
from specdec_t5x.native import library
from specdec_t5x.native.cuda import choice
from specdec_t5x.native.cuda import library as of_gpu
from specdec_t5x.network import draft_step, rounded

# The most iterations of a draft in a round, and about how many seconds they take; of
# none, by which all others are judged and which is quick, there are more.
_ITERATIONS, _BRIEF, _PLAIN = 5, 0.1, 20
# Rounds: so many at least, as many as take these seconds, and no more than the last.
_LEAST, _SECONDS, _MOST = 5, 2.0, 35
_NEVER = -1  # No token ends a sequence that is timed.

# Results of this process: by job, and of the measurements by the names of their files.
_tuned: dict["Job", "Tuned"] = {}
_measured: dict[str, "Times"] = {}
_chosen: set[Any] = set()  # Jobs whose kernels for a GPU are chosen.
# Bytes of what drafters made of targets' parameters, and of these, by name.
_sizes: dict[str, dict[str, int]] = {}


@dataclasses.dataclass(frozen=True)
class Times:
  """What was measured of a decode.

  Attributes:
    seconds: of an iteration with each of the drafts that are timed, none first.
    prepare: seconds from inputs to the first iteration: of an encoder call, mostly.
  """

  seconds: tuple[float, ...]
  prepare: float


@dataclasses.dataclass(frozen=True)
class Job:
  """The decode whose iterations are timed.

  Attributes:
    decoder: whose policy is to know what drafts cost.
    rows: outputs of a call.
    input_length: of a row's input, in tokens.
    sampling: the adjustment of all distributions.
    max_length: of an output, in tokens.
  """

  decoder: Decoder
  rows: int
  input_length: int
  sampling: Sampling
  max_length: int

  @property
  def rows_at_once(self) -> int:
    """The number of rows that decode at once."""
    return self.decoder.rows_at_once(self.rows)


@dataclasses.dataclass(frozen=True)
class Tuned:
  """A decoder for this device.

  Attributes:
    decoder: the decoder to use; a plain one if drafting does not pay.
    policy: the policy with its measured times; None if it needs none.
    times: the measured times; None if nothing was measured.
  """

  decoder: Decoder
  policy: CostAware | None = None
  times: Times | None = None


def tuned(job: Job, params: Mapping[str, Any]) -> Decoder:
  """Returns the decoder for this device: with measured times if its policy needs them.

  The decoder is a plain one if drafting does not pay by these times. Kernels for a GPU
  are chosen before (`choose_kernels`). Times are those of this process or of the disk,
  where the same decode was timed before on such a device; otherwise they are measured,
  which takes some seconds. On several devices nothing is timed: processes would measure
  different times, and compile different programs.

  Args:
    job: the decode.
    params: of the decoder's networks, on the device.
  """
  choose_kernels(job, params)
  if job not in _tuned:
    _tuned[job] = _tune(job, params)
  return _tuned[job].decoder


def _tune(job: Job, params: Mapping[str, Any]) -> Tuned:
  decoder = job.decoder
  if not needs_times(decoder):
    return Tuned(_plain_unless_drafts_pay(decoder))
  if jax.device_count() > 1:
    console.say("Times are of one device: drafting GAMMA tokens.")
    return Tuned(decoder)
  times = _times(job, params)
  policy = dataclasses.replace(decoder.policy, seconds=times.seconds)
  console.say(policy.outlook(decoder.drafter.lengths))
  decoder = dataclasses.replace(decoder, policy=policy)
  return Tuned(_plain_unless_drafts_pay(decoder), policy, times)


def needs_times(decoder: Decoder) -> bool:
  """Returns whether the policy of a decoder needs times that are yet to be measured."""
  return isinstance(decoder.policy, CostAware) and not decoder.policy.seconds


def _plain_unless_drafts_pay(decoder: Decoder) -> Decoder:
  """Returns the decoder, or the plain one with the same outputs."""
  # An observer records what a speculative program does, even if no row drafts.
  if decoder.drafter is None or decoder.observer:
    return decoder
  pays = decoder.policy.pays(decoder.drafter.lengths)
  return decoder if pays else decoder.without_drafts()


def choose_kernels(job: Job, params: Mapping[str, Any]) -> None:
  """Decides which kernels for a GPU the programs of a job call, and says so.

  Args:
    job: what is to be decoded.
    params: of the decoder's networks, on the device.

  Raises:
    ValueError: if PRODUCTS='native' asks for a kernel whose results are wrong.
  """
  if not draft_step.is_for_gpu() or job in _chosen:
    return
  where = device()
  rows = job.rows_at_once
  networks = job.decoder.networks
  for name, network in networks.items():
    # What is derived of the target is multiplied as the target is.
    others = params if name == "target" else {}
    own = {x: params[x] for x in (name, *others) if x == name or x not in networks}
    contests = list(rounded.contests(network.config, own))
    weights = params.get(draft_step.name_of(name))
    reason = draft_step.problem_of(network, rows) or "drafts are trees"
    if weights is not None and draft_step.problem_of(network, rows) is None:
      step = draft_step.contest(network, params[name], weights, rows)
      contests.append((draft_step.key_of(network, rows), step))
    elif name != "target":
      console.say(f"Step of the {name}: XLA's, for {reason}.")
    is_asked_for = getattr(network.config, "products", None) == "native"
    for key, contest in contests:
      if line := choice.decide(key, contest, where, is_asked_for):
        console.say(line)
  _chosen.add(job)


def made(
  name: str, make: Callable[[Any], Any], params: Any, network: str = "target"
) -> Any:
  """Returns what a decode makes of a network's parameters; says how large it is.

  Args:
    name: of what is made.
    make: one of `Decoder.derived`.
    params: the network's.
    network: its name.
  """
  found = jax.block_until_ready(make(params))
  copy, whole = rounded.size(found), rounded.size(params)
  _sizes[name] = {"bytes": copy, f"bytes_of_{network}": whole}
  megabytes = f"{copy / 1e6:.1f} MB beside the {network}'s {whole / 1e6:.1f} MB"
  console.say(f"{name.capitalize().replace('_', ' ')}: {megabytes}.")
  return found


def in_weights(network: Any, params: Any) -> Any:
  """Returns a network's parameters in its weights, which are rounded; and says so.

  Args:
    network: whose they are.
    params: as they were restored.
  """
  rounding = rounded.of_weights(network.config)
  found = jax.block_until_ready(rounded.within(params, rounding(params)))
  few, whole = (rounded.size(tree) / 1e6 for tree in (found, params))
  console.say(
    f"WEIGHTS={network.config.weights!r}: another model than the checkpoint's, of "
    f"{few:.1f} MB in place of {whole:.1f} MB."
  )
  return found


def sizes(names: Iterable[str]) -> dict[str, dict[str, int]]:
  """Returns the bytes of what was last `made` under these names, and of the networks'
  parameters, for a run's record.
  """
  return {name: _sizes[name] for name in names if name in _sizes}


def of_rows(decoder: Decoder, rows: int, sampling: Sampling, max_length: int):
  """Returns the decoder as it was `tuned` for this many rows, untuned if it was not.

  For programs that are being traced, in which nothing can be measured.
  """
  key = decoder, rows, sampling, max_length
  for job, found in _tuned.items():
    if key == (job.decoder, job.rows, job.sampling, job.max_length):
      return found.decoder
  return _plain_unless_drafts_pay(decoder)


def _timed() -> dict[Job, Tuned]:
  """Returns the decodes of this process whose policies go by measured times."""
  return {job: found for job, found in _tuned.items() if found.times}


def outlooks() -> list[str]:
  """Returns what drafting promised in the timed decodes of this process."""
  return [
    found.policy.outlook(job.decoder.drafter.lengths) for job, found in _timed().items()
  ]


def speed_by_iterations(counts: Mapping[str, float]) -> float | None:
  """Returns how many times as long plain decoding would have taken, by measured times.

  None where nothing was measured in this process, or more than one decode was. What a
  real iteration takes longer than a measured one, a plain one takes longer, too.

  Args:
    counts: of all outputs: tokens, target_calls, drafted, and examples.
  """
  if len(_timed()) != 1 or not counts["target_calls"]:
    return None
  ((job, found),) = _timed().items()
  lengths = job.decoder.drafter.lengths
  iterations = found.times.seconds
  drafted = counts["drafted"] / counts["target_calls"]
  of_call = float(np.interp(drafted, lengths, iterations))
  encoding = found.times.prepare * counts["examples"]
  plain = iterations[0] * counts["tokens"] + encoding
  return plain / (of_call * counts["target_calls"] + encoding)


def asked_for() -> list[dict[str, Any]]:
  """Returns the times that decodes of this process go by, for a run's record."""
  return [
    {
      "rows": job.rows_at_once,
      "drafted": list(job.decoder.drafter.lengths),
      "seconds": list(found.times.seconds),
    }
    for job, found in _timed().items()
  ]


def _times(job: Job, params: Mapping[str, Any]) -> Times:
  """Returns the times of a job, kept or measured."""
  job = dataclasses.replace(job, rows=job.rows_at_once)
  lengths = job.decoder.drafter.lengths
  shapes = jax.tree.map(lambda x: (x.shape, x.dtype.name), params)
  # Rows that take turns, alpha and its prior change no times.
  timed = dataclasses.replace(job, decoder=_drafting(job.decoder, None))
  key = repr((timed, lengths, shapes, device())).encode()
  name = hashlib.sha256(key).hexdigest()[:16]
  if name not in _measured:
    found = _read(name, len(lengths))
    if found is None:
      console.stage(f"Measuring what drafts cost at batch size {job.rows}: once.")
      found = _measure(job, params)
      try:
        text = json.dumps(dataclasses.asdict(found))
        library.write_whole(_path(name), text)
      except OSError as error:
        console.say(f"Measured times are for this process alone: {error}")
    _measured[name] = found
  return _measured[name]


def _drafting(decoder: SpeculativeDecoder, length: Any) -> SpeculativeDecoder:
  """Returns the decoder that drafts so many tokens in each iteration."""
  return dataclasses.replace(decoder, policy=Fixed(length), slots=0, observer=None)


def _measure(job: Job, params: Mapping[str, Any]) -> Times:
  """Times drafts of each length, in turn."""
  lengths = job.decoder.drafter.lengths
  start, run = _programs(job)
  with jax.enable_x64(False):
    # Full of content: attention skips what is empty, which would flatter blocks.
    inputs = jnp.ones((job.rows, job.input_length), jnp.int32)
    arguments = params, inputs, row_keys(jax.random.key(0), job.rows)
    state = start(arguments, jnp.int32(0))

    def seconds_of(length: int, count: int) -> float:
      begin = time.perf_counter()
      iterated = run(arguments, jnp.int32(length), state, jnp.int32(count))
      iterated.block_until_ready()
      return time.perf_counter() - begin

    def seconds_to_prepare() -> float:
      begin = time.perf_counter()
      jax.block_until_ready(start(arguments, jnp.int32(0)))
      return time.perf_counter() - begin

    seconds_of(0, 1)  # Compiles, for all lengths and counts.
    # An iteration takes at most a draft and a token of the output.
    fit = (job.max_length - 1) // (lengths[-1] + 1)
    brief = int(_BRIEF / seconds_of(lengths[-1], 1))
    drafted = max(1, min(_ITERATIONS, fit, brief))
    plain = min(_PLAIN, job.max_length - 1)
    counts = [drafted if length else plain for length in lengths]
    prepared = [seconds_to_prepare() for _ in range(_LEAST)]
    rounds: list[list[float]] = []
    end = time.perf_counter() + _SECONDS
    while len(rounds) < _LEAST or (len(rounds) < _MOST and time.perf_counter() < end):
      timed = [seconds_of(*each) for each in zip(lengths, counts, strict=True)]
      rounds.append([seconds_of(0, 0), *timed])
  return Times(_slopes(np.array(rounds), counts), float(np.median(prepared)))


def _programs(job: Job) -> tuple[Callable[..., Any], Callable[..., Any]]:
  """Returns what makes a decode's first state, and what iterates from it."""

  @jax.jit
  def start(arguments, length):
    decoder = _drafting(job.decoder, length)
    _, state = decoder.prepare(*arguments, job.sampling, job.max_length, _NEVER)
    return state

  @jax.jit
  def run(arguments, length, state, count):
    # The first state is not used: inputs, which may take longer to read, are not read.
    decoder = _drafting(job.decoder, length)
    spec, _ = decoder.prepare(*arguments, job.sampling, job.max_length, _NEVER)
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


def _path(name: str) -> pathlib.Path:
  return library.folder() / f"seconds-{name}.json"


def _read(name: str, count: int) -> Times | None:
  """Returns what was kept; None where there is nothing, or nothing of use."""
  try:
    kept = json.loads(_path(name).read_text())
    found = Times(tuple(kept["seconds"]), kept["prepare"])
  except (OSError, ValueError, KeyError, TypeError):
    return None
  numbers = *found.seconds, found.prepare
  are_times = all(is_finite(each) and each > 0 for each in numbers)
  return found if are_times and len(found.seconds) == count else None


def device() -> tuple[str, ...]:
  """Returns what times depend on beside the program."""
  first = jax.devices()[0]
  flags = os.environ.get("XLA_FLAGS", "")
  kernels = library.problem() or library.code().decode()
  if of_gpu.problem() is None:
    kernels = of_gpu.code().decode()
  return (
    first.device_kind,
    processor(),
    str(library.cpus()),
    *(os.environ.get(name, "") for name in ("PJRT_NPROC", "NPROC")),
    jax.__version__,
    flags,
    kernels,
  )


def processor() -> str:
  """Returns the name of this machine's processor, '' where the system gives none."""
  try:
    lines = pathlib.Path("/proc/cpuinfo").read_text().splitlines()
  except OSError:
    return platform.processor()
  names = (line.partition(":")[2] for line in lines if line.startswith("model name"))
  return next(names, "").strip()
