"""Times: of programs in turn, of an iteration's parts, and what calls then take.

Machines drift: what is compared runs in turn in one process, and what is quoted is the
median of ratios, with quartiles. Parts run in loops of their own (`iteration`): the
slope between two counts leaves out what happens once a call (encoding, dispatch).

Shapes: N inputs, R runs.
"""

import dataclasses
import functools
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float
from numpy.typing import ArrayLike

from specdec_t5x.analysis.theory import Numbers, expected_tokens
from specdec_t5x.bench.iteration import (
  Prepare,
  PreparePlain,
  part_programs,
  plain_program,
)
from specdec_t5x.core.distributions import Sampling

# Repetitions that are timed beside each other, of a part and of the loops. A loop that
# does not run at all leaves what happens once a call.
_PART = (2, 10)
ITERATIONS = 10
_TOKENS = 32
_PARTS = ("iteration", "draft", "scoring", "token")
_STARTS = {"encoder": "target_cache", "draft_encoder": "drafter_state"}
# These can be as good as free, as a lookup is; noise may then say less than nothing.
_CAN_BE_FREE = ("draft", "verification")

Program = Callable[[Any], Any]


@dataclasses.dataclass(frozen=True)
class Timed:
  """What one program did with N inputs.

  Attributes:
    seconds: wall-clock time of each input, until the result was ready.
    results: of each input.
  """

  seconds: Float[np.ndarray, "N"]
  results: tuple[Any, ...]


@dataclasses.dataclass(frozen=True)
class Spread:
  """A median with its quartiles."""

  median: float
  low: float
  high: float


def alternate(
  programs: Mapping[Any, Program], inputs: Sequence[Any], warm: int = 1
) -> dict[Any, Timed]:
  """Runs every program on every input, in turn.

  Each program runs `warm` times on the first input before the clock starts, so that
  nothing is compiled while it is timed. The order is reversed from input to input: none
  is always the one that follows a certain other.

  Raises:
    ValueError: where there is nothing to run, or nothing to run it on.
  """
  if not programs or not inputs:
    raise ValueError(
      "Expected at least one program and one input, got "
      f"{len(programs)} and {len(inputs)}."
    )
  for program in programs.values():
    for _ in range(warm):
      jax.block_until_ready(program(inputs[0]))
  seconds, results = ({name: [] for name in programs} for _ in range(2))
  order = list(programs)
  for value in inputs:
    for name in order:
      begin = time.perf_counter()
      result = jax.block_until_ready(programs[name](value))
      seconds[name].append(time.perf_counter() - begin)
      results[name].append(result)
    order.reverse()
  return {n: Timed(np.array(seconds[n]), tuple(results[n])) for n in programs}


def median_ratio(
  numerator: Float[np.ndarray, "N"], denominator: Float[np.ndarray, "N"]
) -> Spread:
  """Returns the median of N ratios, with quartiles; denominators are above 0."""
  return spread(np.asarray(numerator, float) / np.asarray(denominator, float))


def spread(values: Float[np.ndarray, "N"]) -> Spread:
  """Returns the median of N values, with quartiles."""
  low, median, high = np.quantile(values, [0.25, 0.5, 0.75])
  return Spread(float(median), float(low), float(high))


def repeated(
  loops: Mapping[Any, tuple[Callable[..., Any], Sequence[Any], Sequence[int]]],
) -> dict[tuple[Any, int], Program]:
  """Returns by (name, count) what `alternate` times."""
  return {
    (name, count): lambda _, x=(run, count, given): x[0](jnp.int32(x[1]), *x[2])
    for name, (run, given, counts) in loops.items()
    for count in counts
  }


def slopes(timed: Mapping[tuple[Any, int], Timed]) -> dict[Any, Float[np.ndarray, "R"]]:
  """Returns seconds a repetition by name, of what ran at two counts each."""
  counts = {}
  for name, count in timed:
    counts.setdefault(name, []).append(count)
  seconds = lambda *key: timed[key].seconds
  return {
    name: (seconds(name, max(each)) - seconds(name, min(each)))
    / (max(each) - min(each))
    for name, each in counts.items()
  }


def each_turn(loops: Mapping[Any, Any], runs: int) -> dict[Any, Any]:
  """Returns seconds [R] a repetition of loops (see `repeated`) that run in turn."""
  return slopes(alternate(repeated(loops), range(runs)))


def medians(
  slopes: Mapping[Any, Float[np.ndarray, "R"]], gamma: int
) -> dict[Any, float]:
  """Returns the median over the runs of what a repetition of each part takes.

  Raises:
    ValueError: where the machine is too busy to tell a part's time from noise.
  """
  found = {name: float(np.median(seconds)) for name, seconds in slopes.items()}
  for name in found.keys() & _CAN_BE_FREE:
    found[name] = max(found[name], 0.0)
  lost = [n for n, seconds in found.items() if seconds <= 0 and n not in _CAN_BE_FREE]
  if lost:
    raise ValueError(
      f"The time of {lost} is lost in noise (gamma {gamma}): more repetitions took no "
      "longer than few. Leave all cores to the measurement, or raise --runs."
    )
  return found


@dataclasses.dataclass(frozen=True)
class Costs:
  """Seconds of one decode's parts, medians over the runs.

  Theorem 3.8 is what follows where nothing happens once a call, and a block costs one
  token.

  Attributes:
    gamma: tokens drafted an iteration.
    plain: an iteration of the plain loop, that is, a token.
    plain_start: what a call takes beside its iterations: encoding, dispatch.
    iteration: of the speculative loop.
    start: what its call takes beside its iterations.
    draft: drafting gamma tokens.
    scoring: the target's call on gamma + 1 tokens.
    token: the target's call on one.
    encoder: encoding the input for the target.
    draft_encoder: getting the drafter ready, such as encoding the input for it.
  """

  gamma: int
  plain: float
  plain_start: float
  iteration: float
  start: float
  draft: float
  scoring: float
  token: float
  encoder: float
  draft_encoder: float

  @property
  def c(self) -> float:
    """Draft step time / target step time (section 3.3)."""
    return self.draft / self.gamma / self.token

  @property
  def block(self) -> float:
    """Seconds of an iteration but for the drafting: scoring, judging, bookkeeping."""
    return self.iteration - self.draft

  def plain_seconds(self, tokens: ArrayLike) -> Numbers:
    """Returns how long a plain call of so many tokens lasts."""
    return self.plain_start + np.asarray(tokens) * self.plain

  def seconds(self, calls: ArrayLike) -> Numbers:
    """Returns how long a speculative call of so many iterations lasts."""
    return self.start + np.asarray(calls) * self.iteration

  def loop_improvement(self, alpha: ArrayLike) -> Numbers:
    """Returns theorem 3.8 with the measured cost of a block; no encoder.

    E(alpha, gamma) token / (gamma draft step + block), all times measured.
    """
    return expected_tokens(alpha, self.gamma) * self.plain / self.iteration

  def call_improvement(self, alpha: ArrayLike, tokens: ArrayLike) -> Numbers:
    """Returns what follows for whole calls that emit so many tokens each."""
    calls = np.asarray(tokens) / expected_tokens(alpha, self.gamma)
    return self.plain_seconds(tokens) / self.seconds(calls)


def measure_costs(
  prepares: Mapping[int, Prepare],
  prepare_plain: PreparePlain,
  arguments: Sequence[Any],
  *,
  sampling: Sampling,
  room: int,
  runs: int = 15,
) -> dict[int, Costs]:
  """Times every part at every gamma in turn, each in a loop of its own.

  Args:
    prepares: by gamma, from `arguments` to the speculation and its first state, for
      outputs that no token ends.
    prepare_plain: from `arguments` to the target and the plain loop's state.
    arguments: of the programs, such as parameters, inputs and keys.
    sampling: the adjustment of the target's distribution.
    room: most tokens of the output; all starts have to be made for it.
    runs: of every program.

  Returns:
    The costs by gamma; plain decoding's are the same in all.

  Raises:
    ValueError: where not one iteration fits, there are no runs, or the machine is too
      busy to tell a part's time from noise.
  """
  longest = max(prepares)
  if room < longest + 1 or runs < 1:
    raise ValueError(
      f"Expected room for an iteration of gamma + 1 = {longest + 1} tokens and at "
      f"least one run, got {room} and {runs}. Raise --max-length or lower gamma."
    )
  plain = plain_program(prepare_plain, sampling, room)
  loops = {(0, "plain"): (plain, arguments, (0, min(_TOKENS, room)))}
  starts = {}
  for gamma, prepare in prepares.items():
    known = part_programs(prepare)
    iterations = 0, min(ITERATIONS, room // (gamma + 1))
    for name in _PARTS:
      counts = iterations if name == "iteration" else _PART
      loops[gamma, name] = known[name], arguments, counts
    for name, field in _STARTS.items():
      run = jax.jit(lambda *args, p=prepare, f=field: getattr(p(*args)[1], f))
      starts[(gamma, name), 1] = functools.partial(lambda run, _: run(*arguments), run)
  timed = alternate({**repeated(loops), **starts}, range(runs))
  return {gamma: costs_of(gamma, timed) for gamma in prepares}


def costs_of(gamma: int, timed: Mapping[tuple[Any, int], Timed]) -> Costs:
  """Returns the costs at a gamma from the times of ((gamma, part), count)."""
  own = {(k[1], n): each for (k, n), each in timed.items() if k[0] in (0, gamma)}
  once = {name: float(np.median(own.pop((name, 1)).seconds)) for name in _STARTS}
  start = lambda name: float(np.median(own[name, 0].seconds))
  return Costs(
    gamma=gamma,
    plain_start=start("plain"),
    start=start("iteration"),
    **medians(slopes(own), gamma),
    **once,
  )
