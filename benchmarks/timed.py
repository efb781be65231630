"""Times programs in turn.

Machines drift, so compared programs run in turn in one process, and results are medians
of ratios, with quartiles. Parts run in separate loops (`iteration`): the slope between
two counts excludes work once per call (encoding, dispatch).

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

# Drafting by lookups and verification may be lost in noise, with a negative time.
_CAN_BE_FREE = ("draft", "verification")

Program = Callable[[Any], Any]
# A compiled program (count, *arguments), the arguments, and two counts.
Loop = tuple[Callable[..., Any], Sequence[Any], tuple[int, int]]


@dataclasses.dataclass(frozen=True)
class Timed:
  """The times and results of a program on N inputs.

  Attributes:
    seconds: the wall-clock time of each input, until the result is ready.
    results: the result of each input.
  """

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

  Raises:
    ValueError: if there is no program or no input.
  """
  if not programs or not inputs:
    raise ValueError(
      f"Expected at least 1 program and 1 input, got {len(programs)} and {len(inputs)}."
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
  """Returns the median of N ratios, with quartiles; denominators must be above 0."""
  return spread(np.asarray(numerator, float) / np.asarray(denominator, float))


def spread(values: Float[np.ndarray, "N"]) -> Spread:
  """Returns the median of N values, with quartiles."""
  low, median, high = np.quantile(values, [0.25, 0.5, 0.75])
  return Spread(float(median), float(low), float(high))


def repeated(loops: Mapping[Any, Loop]) -> dict[tuple[Any, int], Program]:
  """Returns the programs of loops for `alternate`, by (name, count)."""
  return {
    (name, count): functools.partial(_repeat, run, count, arguments)
    for name, (run, arguments, counts) in loops.items()
    for count in counts
  }


def _repeat(run, count, arguments, _):
  return run(jnp.int32(count), *arguments)


def slopes(timed: Mapping[tuple[Any, int], Timed]) -> dict[Any, Float[np.ndarray, "R"]]:
  """Returns the seconds per repetition by name, from the times at two counts."""
  result = {}
  for name in dict.fromkeys(name for name, _ in timed):
    few, many = sorted(count for other, count in timed if other == name)
    seconds = timed[name, many].seconds - timed[name, few].seconds
    result[name] = seconds / (many - few)
  return result


def each_turn(loops: Mapping[Any, Loop], runs: int) -> dict[Any, Any]:
  """Returns the seconds [R] per repetition of loops that run in turn (`repeated`)."""
  return slopes(alternate(repeated(loops), range(runs)))


def medians(
  slopes: Mapping[Any, Float[np.ndarray, "R"]], gamma: int
) -> dict[Any, float]:
  """Returns the median seconds per repetition of each part.

  Raises:
    ValueError: if the machine is too busy to tell a part's time from noise.
  """
  result = {name: float(np.median(seconds)) for name, seconds in slopes.items()}
  for name in result.keys() & _CAN_BE_FREE:
    result[name] = max(result[name], 0.0)
  lost = [n for n, seconds in result.items() if seconds <= 0 and n not in _CAN_BE_FREE]
  if lost:
    raise ValueError(
      f"The time of {lost} is lost in noise (gamma {gamma}): many repetitions took no "
      "longer than few repetitions. Leave the cores idle for the measurement, or raise "
      "--runs."
    )
  return result
