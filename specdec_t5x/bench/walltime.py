"""Wall-clock time of several programs, measured alternately in one process.

Machines drift: what is compared runs in turn on the same input, and what is quoted is
the median of the inputs' ratios, with its quartiles.
"""

import dataclasses
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import numpy as np
from jaxtyping import Float

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
  programs: Mapping[str, Program], inputs: Sequence[Any]
) -> dict[str, Timed]:
  """Runs every program on every input, in turn.

  Each program runs once on the first input before the clock starts, so that nothing
  is compiled while it is timed. The order is reversed from input to input: none is
  always the one that follows a certain other.

  Args:
    programs: by name; each takes an input.
    inputs: at least one.

  Raises:
    ValueError: where there is nothing to run, or nothing to run it on.
  """
  if not programs or not inputs:
    raise ValueError(
      "Expected at least one program and one input, got "
      f"{len(programs)} and {len(inputs)}."
    )
  for program in programs.values():
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
  """Returns the median of N ratios, with quartiles.

  Args:
    numerator: of each input, such as the seconds a token of the plain loop.
    denominator: of the same input, above 0, such as the speculative loop's.
  """
  ratios = np.asarray(numerator, np.float64) / np.asarray(denominator, np.float64)
  return spread(ratios)


def spread(values: Float[np.ndarray, "N"]) -> Spread:
  """Returns the median of N values, with quartiles."""
  low, median, high = np.quantile(values, [0.25, 0.5, 0.75])
  return Spread(float(median), float(low), float(high))
