"""Measures the time of iterations on this device, before a decode is compiled.

The times decide how many tokens are drafted, never the distribution of outputs. They
are measured with the decode's parameters and rows, and kept on disk. Decodes that
differ only in temperature, or little in lengths, share their times.
"""

import dataclasses
import json
import time
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Int

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

# A round times this many iterations with drafts, or fewer for about _BRIEF seconds.
_DRAFTED = 5
_BRIEF = 0.1
# It times more iterations without a draft: they are quick, and every ratio has them.
_PLAIN = 20
# There are rounds for _SECONDS, at least _LEAST and at most _MOST of them.
_SECONDS = 2.0
_LEAST = 5
_MOST = 35
# The expected share of `max_length` of an output: feature lengths are usually several
# times the mean.
_FILLED = 0.25
_NEVER = -1  # No token ends a sequence that is timed.


@dataclasses.dataclass(frozen=True)
class Job:
  """A decode of `rows` outputs, of inputs of `input_length` tokens."""

  decoder: Decoder
  rows: int
  input_length: int
  sampling: Sampling
  max_length: int

  @property
  def rows_at_once(self) -> int:
    """The number of rows that decode at once."""
    return self.decoder.rows_at_once(self.rows)

  @property
  def output_length(self) -> float:
    """The expected number of tokens of an output."""
    return max(1.0, _FILLED * self.max_length)


def tuned(job: Job, params: Mapping[str, Any]) -> Decoder:
  """Returns the decoder for this device, with measured times for its policy.

  The decoder is plain if drafting does not pay by these times. Kernels for a GPU are
  chosen before. On several devices nothing is timed: processes would measure different
  times, and compile different programs.
  """
  decoder = job.decoder
  choose_kernels(decoder.networks, params, job.rows_at_once)
  # An observer records a speculative program, even if no row drafts.
  if decoder.drafter is None or (decoder.observer and job.max_length == 1):
    return decoder
  if job.max_length == 1:
    console.say_once(
      "Decoding plainly: an output of one token has no room for a draft."
    )
    return plain(decoder)
  lengths = lengths_of(decoder.drafter)
  if needs_times(decoder):
    if jax.device_count() > 1:
      console.say_once("Times are known for one device only: drafts have full length.")
      return decoder
    policy = _timed(job, params)
    prepare = [seconds / job.output_length for seconds in policy.prepare]
    policy = dataclasses.replace(policy, prepare=prepare)
    decoder = dataclasses.replace(decoder, policy=policy)
    console.say_once(speed.outlook(policy, lengths))
    if not decoder.at(job.sampling)[1].certain:
      console.say_once(
        "Samples depend on these times, besides the seed. A fixed draft length or "
        "coupled verification makes samples repeatable."
      )
  if isinstance(decoder.policy, CostAware) and not decoder.observer:
    return decoder if speed.pays(decoder.policy, lengths) else plain(decoder)
  return decoder


def needs_times(decoder: Decoder) -> bool:
  """Returns whether the policy decides by times that are not known yet."""
  is_by_times = isinstance(decoder.policy, CostAware) and not decoder.policy.seconds
  return is_by_times and decoder.drafter is not None


def plain(decoder: Decoder) -> Decoder:
  """Returns the decoder without drafts, with the same outputs and measured times."""
  # A rule that keeps less than the distribution judges no plain decode.
  rule = decoder.rule if decoder.rule.guarantee.keeps_distribution else Token()
  return dataclasses.replace(decoder, drafter=None, rule=rule, observer=None)


def _timed(job: Job, params: Mapping[str, Any]) -> CostAware:
  """Returns the job's policy with the times of this device, kept or measured."""
  policy, lengths = job.decoder.policy, lengths_of(job.decoder.drafter)
  # Which adjustments there are determines the time, and their values do not.
  kind = Sampling(
    top_k=50 if job.sampling.top_k else 0,
    top_p=0.9 if job.sampling.top_p else 0.0,
    coupled=job.sampling.coupled,
  )
  # The job stands for many jobs with nearly the same times. Rows that take turns, alpha
  # and its prior change no times.
  job = dataclasses.replace(
    job,
    decoder=dataclasses.replace(job.decoder, policy=Fixed(), slots=0, observer=None),
    rows=job.rows_at_once,
    input_length=_representative_length(job.input_length),
    sampling=GREEDY if job.sampling.greedy else kind,
    max_length=_representative_length(job.max_length),
  )
  shapes = jax.tree.map(lambda x: (x.shape, x.dtype.name), params)
  key = repr((job, lengths, shapes, device())).encode()
  name = f"seconds-{library.digest(key)}.json"
  try:
    kept = json.loads((library.folder() / name).read_text())
    times = {"seconds": kept["seconds"], "prepare": kept["prepare"]}
    if len(times["seconds"]) == len(lengths):
      return dataclasses.replace(policy, **times, is_kept=True)
  except (OSError, ValueError, KeyError, TypeError):
    pass  # The file is missing or damaged.
  console.stage(f"Measuring the cost of drafts at batch size {job.rows}: once.")
  times = measure(job, params)
  try:
    library.write_whole(library.folder() / name, json.dumps(times))
  except OSError as error:
    console.say(f"Measured times are for this program alone: {error}")
  return dataclasses.replace(policy, **times)


def _representative_length(length: int) -> int:
  """Returns the largest 2^n or 1.5 2^n up to a length, at least 16.

  >>> [_representative_length(length) for length in (0, 47, 48, 100, 128, 500)]
  [16, 32, 48, 96, 128, 384]
  """
  length = max(length, 16)
  power = 1 << (length.bit_length() - 1)
  return power if 2 * length < 3 * power else power + power // 2


def measure(job: Job, params: Mapping[str, Any]) -> dict[str, tuple[float, ...]]:
  """Times drafts of each length, in turn.

  Returns:
    The `seconds` of `CostAware`, and as `prepare` those from inputs to the first
    iteration, without a drafter and with the drafter.
  """
  lengths = lengths_of(job.decoder.drafter)

  def context(params, length):
    """Returns the context of drafts of a length; None is plain decoding."""
    decoder = dataclasses.replace(job.decoder, policy=Fixed(length))
    decoder = plain(decoder) if length is None else decoder
    return decoder.context(params, job.rows, job.sampling, job.max_length, _NEVER)

  @jax.jit
  def start(params, inputs, keys, length):
    return context(params, length).first_state(inputs, keys)

  @jax.jit
  def run(params, state, length, count):
    ctx = context(params, length)
    return generate(ctx, state, at_most(count)).statistics.log_prob

  with jax.enable_x64(False):
    # Full inputs: attention skips padding, which would flatter blocks.
    inputs = jnp.ones((job.rows, job.input_length), jnp.int32)
    keys = row_keys(jax.random.key(0), job.rows)
    state = start(params, inputs, keys, 0)

    def seconds_of(program, *arguments):
      begin = time.perf_counter()
      jax.block_until_ready(program(params, *arguments))
      return time.perf_counter() - begin

    seconds_of(start, inputs, keys, None)  # Compiles plain decoding's start.
    seconds_of(run, state, 0, 1)  # Compiles, for all lengths and counts.
    # An iteration takes at most a draft and a token of the output.
    fit = (job.max_length - 1) // (lengths[-1] + 1)
    brief = int(_BRIEF / seconds_of(run, state, lengths[-1], 1))
    drafted = max(1, min(_DRAFTED, fit, brief))
    counts = [drafted] * len(lengths)
    counts[0] = min(_PLAIN, job.max_length - 1)
    prepared = [
      [seconds_of(start, inputs, keys, n) for n in (None, 0)] for _ in range(_LEAST)
    ]
    runs = [(0, 0), *zip(lengths, counts, strict=True)]
    rounds: list[list[float]] = []
    end = time.perf_counter() + _SECONDS
    while len(rounds) < _LEAST or (len(rounds) < _MOST and time.perf_counter() < end):
      rounds.append([seconds_of(run, state, n, count) for n, count in runs])
  # The time of a kind is its median ratio to the first kind in a round, times the first
  # kind's median: machines get faster and slower by two, and the least times, of
  # different rounds, scatter no less. Noise may make a cheap iteration's negative.
  times = np.array(rounds)
  slopes = np.maximum((times[:, 1:] - times[:, :1]) / counts, 1e-7)
  ratios = np.median(slopes / slopes[:, :1], axis=0)
  seconds = (np.median(slopes[:, 0]) * ratios).round(7)
  prepare = np.median(prepared, axis=0)
  return {"seconds": tuple(seconds.tolist()), "prepare": tuple(prepare.tolist())}


def at_most(count: Int[Array, ""]) -> LoopFn:
  """Returns a loop that stops after `count` iterations."""

  def loop(condition, body, carry):
    return jax.lax.while_loop(
      lambda carry: condition(carry) & (carry[0].iteration.max() < count), body, carry
    )

  return loop
