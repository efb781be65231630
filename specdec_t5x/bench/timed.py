"""Programs timed in turn.

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

# Drafting by lookups and verification may take no time; noise then makes it negative.
_CAN_BE_FREE = ("draft", "verification")

Program = Callable[[Any], Any]
# A compiled program (count, *arguments), its arguments, and two counts.
Loop = tuple[Callable[..., Any], Sequence[Any], tuple[int, int]]


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
  """Returns the median of N ratios, with quartiles; denominators are above 0."""
  return spread(np.asarray(numerator, float) / np.asarray(denominator, float))


def spread(values: Float[np.ndarray, "N"]) -> Spread:
  """Returns the median of N values, with quartiles."""
  low, median, high = np.quantile(values, [0.25, 0.5, 0.75])
  return Spread(float(median), float(low), float(high))


def repeated(loops: Mapping[Any, Loop]) -> dict[tuple[Any, int], Program]:
  """Returns by (name, count) what `alternate` times."""
  return {
    (name, count): functools.partial(_repeat, run, count, arguments)
    for name, (run, arguments, counts) in loops.items()
    for count in counts
  }


def _repeat(run, count, arguments, _):
  return run(jnp.int32(count), *arguments)


def slopes(timed: Mapping[tuple[Any, int], Timed]) -> dict[Any, Float[np.ndarray, "R"]]:
  """Returns seconds a repetition by name, of what ran at two counts each."""
  found = {}
  for name in dict.fromkeys(name for name, _ in timed):
    few, many = sorted(count for other, count in timed if other == name)
    seconds = timed[name, many].seconds - timed[name, few].seconds
    found[name] = seconds / (many - few)
  return found


def each_turn(loops: Mapping[Any, Loop], runs: int) -> dict[Any, Any]:
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
