"""Times programs in turn, and the parts of a decode.

Machines drift, so compared programs run in turn in one process, and results are medians
of ratios, with quartiles. Parts are differences of loops: the slope between two numbers
of iterations excludes work once per call (encoding, dispatch), and an iteration that
drafts twice takes a draft more.

Shapes: B rows, N inputs, R runs.
"""

import dataclasses
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float
from numpy.typing import ArrayLike

from specdec_t5x.core.theory import Numbers, expected_tokens
from specdec_t5x.decoding import loop as verbs
from specdec_t5x.decoding.contracts import decisions_of
from specdec_t5x.decoding.loop import generate
from specdec_t5x.tuning import at_most

Program = Callable[[Any], Any]
# A compiled program (count, *arguments), the arguments, and two counts.
Loop = tuple[Callable[..., Any], Sequence[Any], tuple[int, int]]


@dataclasses.dataclass(frozen=True)
class Timed:
  """The seconds and the results of a program on N inputs."""

  seconds: Float[np.ndarray, "N"]
  results: tuple[Any, ...]


@dataclasses.dataclass(frozen=True)
class Spread:
  """A median with quartiles."""

  median: float
  low: float
  high: float


def alternate(
  programs: Mapping[Any, Program], inputs: Sequence[Any], warm: int = 1
) -> dict[Any, Timed]:
  """Runs every program on every input, in turn.

  Each program runs `warm` times on the first input before the clock starts, so
  compilation is not timed. The order is reversed from input to input, so no program
  always follows the same other program.
  """
  for program in programs.values():
    for _ in range(warm):
      jax.block_until_ready(program(inputs[0]))
  seconds = {name: [] for name in programs}
  results = {name: [] for name in programs}
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
  """Returns the median of N ratios, with quartiles; denominators must be above 0."""
  return spread(np.asarray(numerator, float) / np.asarray(denominator, float))


def spread(values: Float[np.ndarray, "N"]) -> Spread:
  """Returns the median of N values, with quartiles."""
  low, median, high = np.quantile(values, [0.25, 0.5, 0.75])
  return Spread(float(median), float(low), float(high))


def iterated(prepare: Callable[..., Any], redrafts: bool = False) -> Callable[..., Any]:
  """Returns a compiled program (count, *arguments) of `count` iterations or tokens.

  Args:
    prepare: returns the speculation or plain decoding, and the first state.
    redrafts: whether each iteration drafts twice and discards the first draft.
  """

  @jax.jit
  def run(count, *arguments):
    decoding, state = prepare(*arguments)
    loop = at_most(count)
    return generate(decoding, state, _redrafting(decoding, loop) if redrafts else loop)

  return run


def _redrafting(spec, loop):
  def draft_twice(carry, body):
    state, queue = carry
    uniforms = verbs.draws(spec, state)[:, : decisions_of(spec.drafter)]
    proposal, drafter_state = spec.drafter.propose(spec, state, uniforms)
    # A zero that depends on all of the first draft, so XLA can't skip the draft.
    leaves = jax.tree.leaves(jax.lax.optimization_barrier(proposal))
    is_impossible = [leaf.ravel()[-1] == -12345 for leaf in leaves]
    zero = jnp.stack(is_impossible).any().astype(jnp.int32)
    state = state.replace(drafter_state=drafter_state, lengths=state.lengths + zero)
    return body((state, queue))

  return lambda condition, body, carry: loop(
    condition, lambda carry: draft_twice(carry, body), carry
  )


def repeated(loops: Mapping[Any, Loop]) -> dict[tuple[Any, int], Program]:
  """Returns the programs of loops for `alternate`, by (name, count)."""

  def program(run, arguments, count):
    return lambda _: run(jnp.int32(count), *arguments)

  return {
    (name, count): program(run, arguments, count)
    for name, (run, arguments, counts) in loops.items()
    for count in counts
  }


def slopes(timed: Mapping[tuple[Any, int], Timed]) -> dict[Any, Float[np.ndarray, "R"]]:
  """Returns the seconds per repetition by name, from the times at two counts."""
  result = {}
  for name in dict.fromkeys(name for name, _ in timed):
    few, many = sorted(count for other, count in timed if other == name)
    seconds = timed[name, many].seconds - timed[name, few].seconds
    result[name] = seconds / (many - few)
  return result


def medians(slopes: Mapping[Any, Float[np.ndarray, "R"]]) -> dict[Any, float]:
  """Returns the median seconds per repetition of each loop.

  Raises a ValueError if the machine is too busy to tell a loop's time from noise.
  """
  result = {name: float(np.median(seconds)) for name, seconds in slopes.items()}
  if lost := [name for name, seconds in result.items() if seconds <= 0]:
    raise ValueError(
      f"The time of {lost} is lost in noise: many repetitions took no longer than few "
      "repetitions. Leave the cores idle for the measurement, or raise --runs."
    )
  return result


@dataclasses.dataclass(frozen=True)
class Costs:
  """The seconds of a decode's parts, medians over the runs."""

  gamma: int  # Drafted tokens per iteration.
  plain: float  # An iteration of the plain loop, that is, a token.
  plain_start: float  # A plain call without iterations: encoding, dispatch.
  iteration: float  # An iteration of the speculative loop.
  start: float  # A speculative call without iterations.
  draft: float  # Drafting of gamma tokens.

  @property
  def c(self) -> float:
    """Draft step time / target step time (section 3.3)."""
    return self.draft / self.gamma / self.plain

  @property
  def block(self) -> float:
    """Seconds of an iteration without drafting: scoring, verification, bookkeeping."""
    return self.iteration - self.draft

  def loop_improvement(self, alpha: ArrayLike) -> Numbers:
    """Returns E(alpha, gamma) plain / iteration: theorem 3.8 with a block's cost."""
    return expected_tokens(alpha, self.gamma) * self.plain / self.iteration
