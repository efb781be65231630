"""Measures the time of iterations on this device, before a decode is compiled.

The times decide how many tokens are drafted, never the distribution of outputs. They
are measured with the decode's parameters and rows, and kept on disk. Decodes that
differ only in temperature, or little in lengths, share their times.
"""

import dataclasses
import functools
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
from jaxtyping import Array, Float, Int

from specdec_t5x import console
from specdec_t5x.core.distributions import GREEDY, Sampling
from specdec_t5x.core.knobs import is_finite
from specdec_t5x.core.rules.token import Token
from specdec_t5x.decoding.contracts import lengths_of
from specdec_t5x.decoding.decoder import Decoder
from specdec_t5x.decoding.loop import generate
from specdec_t5x.decoding.policies import CostAware, Fixed
from specdec_t5x.decoding.state import LoopFn, row_keys
from specdec_t5x.native import library
from specdec_t5x.native.cuda import choice
from specdec_t5x.native.cuda import library as of_gpu
from specdec_t5x.native.cuda import step as draft_step
from specdec_t5x.network import rounded

# A round times at most this many iterations with drafts, for about this many seconds.
_ITERATIONS = 5
_BRIEF = 0.1
# It times more iterations without a draft: they are quick, and every ratio has them.
_PLAIN = 20
# There are rounds for _SECONDS, at least _LEAST and at most _MOST of them.
_LEAST = 5
_SECONDS = 2.0
_MOST = 35
# An output is expected to have this share of `max_length`: its length is not known, and
# feature lengths are usually several times the mean.
_FILLED = 0.25
# Times are measured for few lengths, of at least so many tokens, and for one adjustment
# of each kind.
_SHORT = 16
_USUAL_TOP_K = 50
_USUAL_TOP_P = 0.9
_NO_ROOM = "Decoding plainly: an output of one token has no room for a draft."
_DEPENDS = (
  "Samples depend on these times, besides the seed. A fixed draft length or coupled "
  "verification makes samples repeatable."
)
_NEVER = -1  # No token ends a sequence that is timed.

# Results of this process by job, and measurements by the names of their files.
_tuned: dict["Job", "Tuned"] = {}
_measured: dict[str, "Times"] = {}
_said: set[str] = set()  # Lines that this process has printed.
_chosen: set[Any] = set()  # Jobs with chosen kernels for a GPU.
# Bytes of derived arrays and of the parameters that they derive from, by name.
_sizes: dict[str, dict[str, int]] = {}


@dataclasses.dataclass(frozen=True)
class Times:
  """The measured times of a decode.

  Attributes:
    seconds: time of an iteration for each draft length, the first without a draft.
    prepare: seconds from inputs to the first iteration, mostly of encoders: without a
      drafter, and with the drafter.
    is_kept: whether an earlier process measured the times.
  """

  seconds: tuple[float, ...]
  prepare: tuple[float, float]
  is_kept: bool = dataclasses.field(default=False, compare=False)


@dataclasses.dataclass(frozen=True)
class Job:
  """A decode of a certain shape.

  Attributes:
    decoder: decodes.
    rows: outputs of a call.
    input_length: tokens of a row's input.
    sampling: the adjustment of all distributions.
    max_length: the most tokens of an output.
  """

  decoder: Decoder
  rows: int
  input_length: int
  sampling: Sampling
  max_length: int

  @property
  def rows_at_once(self) -> int:
    """The number of rows that decode at once."""
    return min(self.rows, self.decoder.slots or self.rows)


@dataclasses.dataclass(frozen=True)
class Tuned:
  """A decoder for this device.

  Attributes:
    decoder: the decoder to use; a plain one if drafting does not pay.
    outlook: a line about the expected speedup; '' for a decode as asked for.
    times: the measured times; None if nothing was measured.
  """

  decoder: Decoder
  outlook: str = ""
  times: Times | None = None


def tuned(job: Job, params: Mapping[str, Any]) -> Decoder:
  """Returns the decoder for this device, with measured times for its policy.

  The decoder is plain if drafting does not pay by these times. Kernels for a GPU are
  chosen before (`choose_kernels`). Times of an equal decode are read from the disk;
  otherwise measuring takes some seconds. On several devices nothing is timed: processes
  would measure different times, and compile different programs.

  Args:
    job: the decode.
    params: of the decoder's networks, on the device.
  """
  choose_kernels(job, params)
  if job not in _tuned:
    _tuned[job] = _tune(job, params)
    lines = [_tuned[job].outlook]
    if _tuned[job].times and not job.decoder.at(job.sampling)[1].certain:
      lines.append(_DEPENDS)
    for line in filter(None, lines):
      if line not in _said:
        console.say(line)
        _said.add(line)
  return _tuned[job].decoder


def _tune(job: Job, params: Mapping[str, Any]) -> Tuned:
  decoder = job.decoder
  needs_times = isinstance(decoder.policy, CostAware) and not decoder.policy.seconds
  if not needs_times or job.max_length == 1:
    chosen = plain_unless_drafts_pay(decoder, job.max_length)
    is_changed = job.max_length == 1 and chosen != decoder
    return Tuned(chosen, _NO_ROOM if is_changed else "")
  if jax.device_count() > 1:
    console.say("Times are known for one device only: drafting GAMMA tokens.")
    return Tuned(decoder)
  times = _times(job, params)
  tokens = max(1.0, _FILLED * job.max_length)
  prepare = tuple(seconds / tokens for seconds in times.prepare)
  policy = dataclasses.replace(decoder.policy, seconds=times.seconds, prepare=prepare)
  outlook = policy.outlook(lengths_of(decoder.drafter))
  decoder = dataclasses.replace(decoder, policy=policy)
  return Tuned(plain_unless_drafts_pay(decoder, job.max_length), outlook, times)


def plain_unless_drafts_pay(decoder: Decoder, max_length: int) -> Decoder:
  """Returns the decoder, or the plain one with the same outputs if drafts don't pay."""
  # An observer records a speculative program, even if no row drafts.
  if decoder.drafter is None or decoder.observer:
    return decoder
  pays = max_length > 1
  if pays and isinstance(decoder.policy, CostAware):
    pays = decoder.policy.pays(lengths_of(decoder.drafter))
  return decoder if pays else plain(decoder)


def plain(decoder: Decoder) -> Decoder:
  """Returns the decoder without drafts, with the same outputs."""
  # A rule that keeps less than the distribution judges no plain decode.
  rule = decoder.rule if decoder.rule.guarantee.keeps_distribution else Token()
  return dataclasses.replace(
    decoder, drafter=None, rule=rule, policy=Fixed(), observer=None
  )


def choose_kernels(job: Job, params: Mapping[str, Any]) -> None:
  """Decides which kernels for a GPU the programs of a job call, and says so.

  Args:
    job: the decode.
    params: of the decoder's networks, on the device.

  Raises:
    ValueError: if PRODUCTS='native' asks for a kernel with wrong results.
  """
  if not draft_step.is_for_gpu() or job in _chosen:
    return
  where = device()
  rows = job.rows_at_once
  networks = job.decoder.networks
  for name, network in networks.items():
    # Arrays derived of the target are multiplied like the target's weights.
    others = params if name == "target" else {}
    network_params = {
      x: params[x] for x in (name, *others) if x == name or x not in networks
    }
    contests = list(rounded.contests(network.config, network_params))
    weights = params.get(draft_step.name_of(name))
    reason = draft_step.problem_of(network, rows) or "drafts are trees"
    if weights is not None and draft_step.problem_of(network, rows) is None:
      step = draft_step.contest(network, params[name], weights, rows)
      contests.append((draft_step.key_of(network, rows), step))
    elif name != "target":
      console.say(f"Step of the {name}: XLA's, because {reason}.")
    is_asked_for = getattr(network.config, "products", None) == "native"
    for key, contest in contests:
      if line := choice.decide(key, contest, where, is_asked_for):
        console.say(line)
  _chosen.add(job)


def made(
  name: str, make: Callable[[Any], Any], params: Any, network: str = "target"
) -> Any:
  """Computes an array from a network's parameters, and prints its size.

  Args:
    name: name of the array.
    make: one of `Decoder.derive`.
    params: the network's parameters.
    network: its name.
  """
  arrays = jax.block_until_ready(make(params))
  array_bytes, network_bytes = rounded.size(arrays), rounded.size(params)
  _sizes[name] = {"bytes": array_bytes, f"bytes_of_{network}": network_bytes}
  megabytes = (
    f"{array_bytes / 1e6:.1f} MB beside the {network}'s {network_bytes / 1e6:.1f} MB"
  )
  console.say(f"{name.capitalize().replace('_', ' ')}: {megabytes}.")
  return arrays


def in_weights(network: Any, params: Any) -> Any:
  """Rounds the parameters of a network with rounded weights, and prints their size.

  Args:
    network: the network.
    params: the restored parameters.
  """
  rounding = rounded.of_weights(network.config)
  rounded_params = jax.block_until_ready(rounded.within(params, rounding(params)))
  rounded_megabytes, megabytes = (
    rounded.size(tree) / 1e6 for tree in (rounded_params, params)
  )
  console.say(
    f"WEIGHTS={network.config.weights!r}: the rounded weights are another model than "
    f"the checkpoint's, with {rounded_megabytes:.1f} MB instead of {megabytes:.1f} MB."
  )
  return rounded_params


def sizes(names: Iterable[str]) -> dict[str, dict[str, int]]:
  """Returns the bytes of arrays that were last `made` under these names.

  Beside them stand the bytes of the networks' parameters, for a run's record.
  """
  return {name: _sizes[name] for name in names if name in _sizes}


def _timed() -> dict[Job, Tuned]:
  """Returns the decodes of this process with measured times."""
  return {job: outcome for job, outcome in _tuned.items() if outcome.times}


def outlooks() -> list[str]:
  """Returns the expected speedups of the decodes of this process, as lines."""
  lines = (outcome.outlook for outcome in _tuned.values() if outcome.outlook)
  return list(dict.fromkeys(lines))


def speed_by_iterations(counts: Mapping[str, float]) -> float | None:
  """Returns the speedup over plain decoding by measured times.

  The result is None unless this process measured the times of exactly one decode. Real
  iterations take longer than timed iterations, with and without drafts alike.

  Args:
    counts: the sums over all outputs: tokens, target_calls, drafted, examples.
  """
  if len(_timed()) != 1 or not counts["target_calls"]:
    return None
  ((job, outcome),) = _timed().items()
  if outcome.times.is_kept:
    return None
  lengths = lengths_of(job.decoder.drafter)
  iterations = outcome.times.seconds
  drafted = counts["drafted"] / counts["target_calls"]
  of_call = float(np.interp(drafted, lengths, iterations))
  without_drafts, with_drafts = np.array(outcome.times.prepare) * counts["examples"]
  plain = iterations[0] * counts["tokens"] + without_drafts
  return plain / (of_call * counts["target_calls"] + with_drafts)


def asked_for() -> list[dict[str, Any]]:
  """Returns the measured times of this process, for a run's record."""
  return [
    {
      "rows": job.rows_at_once,
      "drafted": list(lengths_of(job.decoder.drafter)),
      "seconds": list(outcome.times.seconds),
    }
    for job, outcome in _timed().items()
  ]


def _times(job: Job, params: Mapping[str, Any]) -> Times:
  """Returns the times of a job, kept or measured."""
  job = _representative(job)
  lengths = lengths_of(job.decoder.drafter)
  shapes = jax.tree.map(lambda x: (x.shape, x.dtype.name), params)
  # Rows that take turns, alpha and its prior change no times.
  timed = dataclasses.replace(job, decoder=_drafting(job.decoder, None))
  key = repr((timed, lengths, shapes, device())).encode()
  name = hashlib.sha256(key).hexdigest()[:16]
  if name not in _measured:
    times = _read(name, len(lengths))
    if times is None:
      console.stage(f"Measuring the cost of drafts at batch size {job.rows}: once.")
      times = _measure(job, params)
      try:
        text = json.dumps(dataclasses.asdict(times))
        library.write_whole(_path(name), text)
      except OSError as error:
        console.say(f"Measured times are for this process alone: {error}")
    _measured[name] = times
  return _measured[name]


def _representative(job: Job) -> Job:
  """Returns the job with nearly the same times that stands for many jobs."""
  sampling = GREEDY
  if not job.sampling.greedy:
    # Which adjustments there are determines the time, and their values do not.
    sampling = Sampling(
      top_k=_USUAL_TOP_K if job.sampling.top_k else 0,
      top_p=_USUAL_TOP_P if job.sampling.top_p else 0.0,
      coupled=job.sampling.coupled,
    )
  return dataclasses.replace(
    job,
    rows=job.rows_at_once,
    input_length=_representative_length(job.input_length),
    sampling=sampling,
    max_length=_representative_length(job.max_length),
  )


def _representative_length(length: int) -> int:
  """Returns the largest 2^n or 1.5 2^n up to a length, at least _SHORT.

  >>> [_representative_length(length) for length in (0, 47, 48, 100, 128, 500)]
  [16, 32, 48, 96, 128, 384]
  """
  length = max(length, _SHORT)
  power = 1 << (length.bit_length() - 1)
  return power if 2 * length < 3 * power else power + power // 2


def _drafting(decoder: Decoder, length: Any) -> Decoder:
  """Returns the decoder that drafts so many tokens in each iteration."""
  return dataclasses.replace(decoder, policy=Fixed(length), slots=0, observer=None)


def _measure(job: Job, params: Mapping[str, Any]) -> Times:
  """Times drafts of each length, in turn."""
  lengths = lengths_of(job.decoder.drafter)
  start, run = _programs(job)
  with jax.enable_x64(False):
    # Full inputs: attention skips padding, which would flatter blocks.
    inputs = jnp.ones((job.rows, job.input_length), jnp.int32)
    arguments = params, inputs, row_keys(jax.random.key(0), job.rows)
    state = start(arguments, 0)

    def seconds_of(program: Callable[..., Any], *settings: Any) -> float:
      begin = time.perf_counter()
      jax.block_until_ready(program(arguments, *settings))
      return time.perf_counter() - begin

    seconds_of(start, None)  # Compiles plain decoding's start.
    seconds_of(run, 0, state, 1)  # Compiles, for all lengths and counts.
    # An iteration takes at most a draft and a token of the output.
    fit = (job.max_length - 1) // (lengths[-1] + 1)
    brief = int(_BRIEF / seconds_of(run, lengths[-1], state, 1))
    drafted = max(1, min(_ITERATIONS, fit, brief))
    plain = min(_PLAIN, job.max_length - 1)
    counts = [drafted if length else plain for length in lengths]
    prepared = [[seconds_of(start, n) for n in (None, 0)] for _ in range(_LEAST)]
    rounds: list[list[float]] = []
    end = time.perf_counter() + _SECONDS
    while len(rounds) < _LEAST or (len(rounds) < _MOST and time.perf_counter() < end):
      pairs = zip(lengths, counts, strict=True)
      timed = [seconds_of(run, length, state, count) for length, count in pairs]
      rounds.append([seconds_of(run, 0, state, 0), *timed])
  prepare = tuple(np.median(prepared, axis=0).tolist())
  return Times(_slopes(np.array(rounds), counts), prepare)


def _programs(job: Job) -> tuple[Callable[..., Any], Callable[..., Any]]:
  """Returns the programs that make a decode's first state, and that iterate from it.

  With None as the draft length, the first state is plain decoding's.
  """

  def started(arguments, decoder):
    params, inputs, keys = arguments
    settings = job.sampling, job.max_length, _NEVER
    ctx = decoder.context(params, len(keys), *settings)
    return ctx, functools.partial(decoder.encode, ctx, inputs, keys)

  @jax.jit
  def start(arguments, length):
    is_plain = length is None
    decoder = plain(job.decoder) if is_plain else _drafting(job.decoder, length)
    _, encode = started(arguments, decoder)
    return encode()

  @jax.jit
  def run(arguments, length, state, count):
    ctx, _ = started(arguments, _drafting(job.decoder, length))
    return generate(ctx, state, at_most(count)).scores

  return start, run


def at_most(count: Int[Array, ""]) -> LoopFn:
  """Returns a loop that stops after `count` iterations."""

  def loop(condition, body, carry):
    def goes_on(carry):
      return condition(carry) & (carry.state.iteration.max() < count)

    return jax.lax.while_loop(goes_on, body, carry)

  return loop


def _slopes(
  rounds: Float[np.ndarray, "R K"], counts: Sequence[int]
) -> tuple[float, ...]:
  """Returns the time of an iteration of each kind.

  The time of a kind is its median ratio to the first kind, times the median time of the
  first kind. Ratios are of one round, since machines get faster and slower by two. The
  least times, of different rounds, scatter no less the more rounds there are.

  Args:
    rounds: seconds of a call without iterations, and of calls with iterations of each
      kind.
    counts: the numbers of these iterations.
  """
  # Noise may make the time of a cheap iteration negative.
  slopes = np.maximum((rounds[:, 1:] - rounds[:, :1]) / counts, 1e-7)
  ratios = np.median(slopes / slopes[:, :1], axis=0)
  return tuple((np.median(slopes[:, 0]) * ratios).round(7).tolist())


def _path(name: str) -> pathlib.Path:
  return library.folder() / f"seconds-{name}.json"


def _read(name: str, count: int) -> Times | None:
  """Returns the times in a file; None if the file is missing or damaged."""
  try:
    kept = json.loads(_path(name).read_text())
    times = Times(tuple(kept["seconds"]), tuple(kept["prepare"]), is_kept=True)
  except (OSError, ValueError, KeyError, TypeError):
    return None
  numbers = *times.seconds, *times.prepare
  are_times = all(is_finite(each) and each > 0 for each in numbers)
  are_complete = (len(times.seconds), len(times.prepare)) == (count, 2)
  return times if are_times and are_complete else None


def device() -> tuple[str, ...]:
  """Returns everything beside the program that times depend on."""
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
  """Returns the name of this machine's processor; '' if the system gives none."""
  try:
    lines = pathlib.Path("/proc/cpuinfo").read_text().splitlines()
  except OSError:
    return platform.processor()
  names = (line.partition(":")[2] for line in lines if line.startswith("model name"))
  return next(names, "").strip()
