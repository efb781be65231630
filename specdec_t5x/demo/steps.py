"""The steps of the demo, with estimates of the remaining time."""

import contextlib
import dataclasses
import time
from collections.abc import Callable, Iterator, Sequence

from specdec_t5x.training.progress import duration


@dataclasses.dataclass(frozen=True)
class Step:
  """A step of the demo.

  Attributes:
    about: a description.
    weight: the share of the total time; only ratios of weights count.
    is_cached: whether the step's result exists already.
  """

  about: str
  weight: float
  is_cached: bool = False


class Steps:
  """Announces steps in order.

  The remaining time follows from the seconds of the finished steps and the weights. No
  estimate is printed before the end of the first step without a cached result.

  Args:
    steps: all steps.
    clock: a function that returns seconds.
  """

  def __init__(
    self, steps: Sequence[Step], clock: Callable[[], float] = time.monotonic
  ):
    self._steps = list(steps)
    self._clock = clock
    self._number = 0
    self._seconds = 0.0
    self._weight = 0.0

  @contextlib.contextmanager
  def step(self) -> Iterator[Step]:
    """Announces the next step and times the body."""
    step = self._steps[self._number]
    self._number += 1
    words = ["cached"] if step.is_cached else []
    if left := self.left():
      words.append(f"all: {duration(left)} left")
    note = f" ({'; '.join(words)})" if words else ""
    print(f"[{self._number}/{len(self._steps)}] {step.about}{note}", flush=True)
    begin = self._clock()
    yield step
    seconds = self._clock() - begin
    print(f"      {seconds:.0f} s", flush=True)
    if not step.is_cached:
      self._seconds += seconds
      self._weight += step.weight

  def left(self) -> float | None:
    """Returns the seconds from this step to the end; None if unknown."""
    if not self._weight:
      return None
    remaining = self._steps[max(self._number - 1, 0) :]
    weight = sum(step.weight for step in remaining if not step.is_cached)
    return weight * self._seconds / self._weight
