"""Measures the time of iterations on this device, before a decode is compiled.

The times decide how many tokens are drafted, never the distribution of outputs. They
are measured with the decode's parameters and rows, and kept on disk. Decodes that
differ only in temperature, or little in lengths, share their times.
"""

import dataclasses
import json
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from specdec_t5x import console, speed
from specdec_t5x.core.distributions import GREEDY, Sampling
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
_NEVER = -1  # No token ends a sequence that is timed.
# The seconds of an iteration for each draft length, the first without a draft; and from
# inputs to the first iteration, without a drafter and with the drafter.
Times = tuple[tuple[float, ...], tuple[float, float]]


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

  @property
  def output_length(self) -> float:
    """The expected number of tokens of an output."""
    return max(1.0, _FILLED * self.max_length)


def tuned(job: Job, params: Mapping[str, Any]) -> Decoder:
  """Returns the decoder for this device, with measured times for its policy.

  The decoder is plain if drafting does not pay by these times. Kernels for a GPU are
  chosen before (`choose_kernels`). Times of an equal decode are read from the disk;
  otherwise measuring takes some seconds. On several devices nothing is timed: processes
  would measure different times, and compile different programs.
  """
  decoder = job.decoder
  choose_kernels(decoder.networks, params, job.rows_at_once)
  # An observer records a speculative program, even if no row drafts.
  is_watched = decoder.drafter is None or decoder.observer
  if job.max_length == 1:
    if is_watched:
      return decoder
    console.say_once(
      "Decoding plainly: an output of one token has no room for a draft."
    )
    return plain(decoder)
  if needs_times(decoder):
    if jax.device_count() > 1:
      console.say_once("Times are known for one device only: drafts have full length.")
      return decoder
    policy = _timed(job, params)
    prepare = [seconds / job.output_length for seconds in policy.prepare]
    policy = dataclasses.replace(policy, prepare=prepare)
    decoder = dataclasses.replace(decoder, policy=policy)
    console.say_once(speed.outlook(policy, lengths_of(decoder.drafter)))
    if not decoder.at(job.sampling)[1].certain:
      console.say_once(
        "Samples depend on these times, besides the seed. A fixed draft length or "
        "coupled verification makes samples repeatable."
      )
  if is_watched or not isinstance(decoder.policy, CostAware):
    return decoder
  pays = speed.pays(decoder.policy, lengths_of(decoder.drafter))
  return decoder if pays else plain(decoder)


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


def _timed(job: Job, params: Mapping[str, Any]) -> CostAware:
  """Returns the job's policy with the times of this device, kept or measured."""
  policy, lengths = job.decoder.policy, lengths_of(job.decoder.drafter)
  job = _representative(job)
  shapes = jax.tree.map(lambda x: (x.shape, x.dtype.name), params)
  # Rows that take turns, alpha and its prior change no times.
  timed = dataclasses.replace(job, decoder=_drafting(job.decoder, None))
  key = repr((timed, lengths, shapes, device())).encode()
  name = f"seconds-{library.digest(key)}.json"
  if kept := _read(name, policy, lengths):
    return kept
  console.stage(f"Measuring the cost of drafts at batch size {job.rows}: once.")
  seconds, prepare = measure(job, params)
  try:
    times = json.dumps({"seconds": seconds, "prepare": prepare})
    library.write_whole(library.folder() / name, times)
  except OSError as error:
    console.say(f"Measured times are for this program alone: {error}")
  return dataclasses.replace(policy, seconds=seconds, prepare=prepare)


def _read(name: str, policy: CostAware, lengths: tuple[int, ...]) -> CostAware | None:
  """Returns the policy with the times of a file; None if there are no valid times."""
  try:
    kept = json.loads((library.folder() / name).read_text())
    policy = dataclasses.replace(
      policy, seconds=kept["seconds"], prepare=kept["prepare"], is_kept=True
    )
    policy.check(lengths)
  except (OSError, ValueError, KeyError, TypeError):  # Missing or damaged.
    return None
  return policy if policy.seconds else None


def _representative(job: Job) -> Job:
  """Returns the job with nearly the same times that stands for many jobs."""
  # Which adjustments there are determines the time, and their values do not.
  kind = Sampling(
    top_k=50 if job.sampling.top_k else 0,
    top_p=0.9 if job.sampling.top_p else 0.0,
    coupled=job.sampling.coupled,
  )
  return dataclasses.replace(
    job,
    rows=job.rows_at_once,
    input_length=_representative_length(job.input_length),
    sampling=GREEDY if job.sampling.greedy else kind,
    max_length=_representative_length(job.max_length),
  )


def _representative_length(length: int) -> int:
  """Returns the largest 2^n or 1.5 2^n up to a length, at least 16.

  >>> [_representative_length(length) for length in (0, 47, 48, 100, 128, 500)]
  [16, 32, 48, 96, 128, 384]
  """
  length = max(length, 16)
  power = 1 << (length.bit_length() - 1)
  return power if 2 * length < 3 * power else power + power // 2


def _drafting(decoder: Decoder, length: Any) -> Decoder:
  """Returns the decoder that drafts so many tokens in each iteration."""
  return dataclasses.replace(decoder, policy=Fixed(length), slots=0, observer=None)


def measure(job: Job, params: Mapping[str, Any]) -> Times:
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
      runs = [(0, 0), *zip(lengths, counts, strict=True)]
      rounds.append([seconds_of(run, n, state, count) for n, count in runs])
  prepare = tuple(np.median(prepared, axis=0).tolist())
  return _slopes(np.array(rounds), counts), prepare


def _programs(job: Job) -> tuple[Callable[..., Any], Callable[..., Any]]:
  """Returns the programs that make a decode's first state, and that iterate from it.

  With None as the draft length, the first state is plain decoding's.
  """

  def context(arguments, decoder):
    params, _, keys = arguments
    return decoder.context(params, len(keys), job.sampling, job.max_length, _NEVER)

  @jax.jit
  def start(arguments, length):
    _, inputs, keys = arguments
    is_plain = length is None
    decoder = plain(job.decoder) if is_plain else _drafting(job.decoder, length)
    return decoder.encode(context(arguments, decoder), inputs, keys)

  @jax.jit
  def run(arguments, length, state, count):
    ctx = context(arguments, _drafting(job.decoder, length))
    return generate(ctx, state, at_most(count)).scores

  return start, run


def at_most(count: Int[Array, ""]) -> LoopFn:
  """Returns a loop that stops after `count` iterations."""

  def loop(condition, body, carry):
    def goes_on(carry):
      return condition(carry) & (carry[0].iteration.max() < count)

    return jax.lax.while_loop(goes_on, body, carry)

  return loop


def _slopes(
  rounds: Float[np.ndarray, "R K"], counts: Sequence[int]
) -> tuple[float, ...]:
  """Returns the time of an iteration of each kind.

  The time of a kind is its median ratio to the first kind, times the median time of the
  first kind. Ratios are of one round, since machines get faster and slower by two. The
  least times, of different rounds, scatter no less the more rounds there are. A round
  has the seconds of a call without iterations, and of calls with `counts` iterations.
  """
  # Noise may make the time of a cheap iteration negative.
  slopes = np.maximum((rounds[:, 1:] - rounds[:, :1]) / counts, 1e-7)
  ratios = np.median(slopes / slopes[:, :1], axis=0)
  return tuple((np.median(slopes[:, 0]) * ratios).round(7).tolist())
