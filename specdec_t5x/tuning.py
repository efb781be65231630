"""Measures the time of iterations on this device, before a decode is compiled.

The times decide how many tokens are drafted, never the distribution of outputs. They
are measured with the decode's parameters and rows, and kept on disk. Decodes that
differ only in temperature, or little in lengths, share their times.
"""

import dataclasses
import functools
import hashlib
import json
import pathlib
import time
from collections.abc import Callable, Mapping, Sequence
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
from specdec_t5x.prepared import choose_kernels, device

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

# Measurements of this process by the names of their files, where files can't be kept.
_measured: dict[str, "Times"] = {}


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
  decoder = job.decoder
  choose_kernels(decoder.networks, params, job.rows_at_once)
  # An observer records a speculative program, even if no row drafts.
  is_watched = decoder.drafter is None or decoder.observer
  if job.max_length == 1:
    if is_watched:
      return decoder
    console.say_once(_NO_ROOM)
    return plain(decoder)
  if needs_times(decoder):
    if jax.device_count() > 1:
      console.say_once("Times are known for one device only: drafts have full length.")
      return decoder
    times = _times(job, params)
    prepare = tuple(seconds / _tokens(job) for seconds in times.prepare)
    policy = dataclasses.replace(
      decoder.policy, seconds=times.seconds, prepare=prepare, is_kept=times.is_kept
    )
    decoder = dataclasses.replace(decoder, policy=policy)
    console.say_once(outlook(job, decoder))
    if not decoder.at(job.sampling)[1].certain:
      console.say_once(_DEPENDS)
  if is_watched or not isinstance(decoder.policy, CostAware):
    return decoder
  pays = decoder.policy.pays(lengths_of(decoder.drafter))
  return decoder if pays else plain(decoder)


def _tokens(job: Job) -> float:
  """Returns the expected length of an output."""
  return max(1.0, _FILLED * job.max_length)


def needs_times(decoder: Decoder) -> bool:
  """Returns whether the policy decides by times that are not known yet."""
  is_by_times = isinstance(decoder.policy, CostAware) and not decoder.policy.seconds
  return is_by_times and decoder.drafter is not None


def plain(decoder: Decoder) -> Decoder:
  """Returns the decoder without drafts, with the same outputs.

  The policy stays, as it has the measured times.
  """
  # A rule that keeps less than the distribution judges no plain decode.
  rule = decoder.rule if decoder.rule.guarantee.keeps_distribution else Token()
  return dataclasses.replace(decoder, drafter=None, rule=rule, observer=None)


def outlook(job: Job, decoder: Decoder) -> str:
  """Returns a line about the expected speedup of drafts; '' without measured times.

  Args:
    job: the decode.
    decoder: the result of `tuned`.
  """
  is_measured = needs_times(job.decoder) and decoder.policy.seconds
  return decoder.policy.outlook(lengths_of(job.decoder.drafter)) if is_measured else ""


def speed_by_iterations(
  job: Job, decoder: Decoder, counts: Mapping[str, float]
) -> float | None:
  """Returns the speedup over plain decoding by measured times.

  The result is None unless this process measured the times. Real iterations take longer
  than timed iterations, with and without drafts alike.

  Args:
    job: the decode.
    decoder: the result of `tuned`.
    counts: the sums over all outputs: tokens, target_calls, drafted, examples.
  """
  policy = decoder.policy
  if not (outlook(job, decoder) and counts["target_calls"]) or policy.is_kept:
    return None
  drafted = counts["drafted"] / counts["target_calls"]
  of_call = float(np.interp(drafted, lengths_of(job.decoder.drafter), policy.seconds))
  starts = np.array(policy.prepare) * _tokens(job) * counts["examples"]
  without_drafts = policy.seconds[0] * counts["tokens"] + starts[0]
  return without_drafts / (of_call * counts["target_calls"] + starts[1])


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
    ctx = decoder.context(params, len(keys), job.sampling, job.max_length, _NEVER)
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
