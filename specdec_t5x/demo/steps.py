"""How long the demo still takes, by what its steps took so far."""

import contextlib
import dataclasses
import time
from collections.abc import Callable, Iterator, Sequence

from specdec_t5x.training.progress import duration


@dataclasses.dataclass(frozen=True)
class Step:
  """A step, and how it compares with others.

  Attributes:
    about: what it does.
    weight: its share of the whole; only ratios of weights count.
    is_cached: whether what it makes is there.
  """

  about: str
  weight: float
  is_cached: bool = False


class Steps:
  """Announces steps in their order.

  How long the rest takes follows from the seconds that the steps so far took, by
  weight: nothing is said before the first one that takes time is done.

  Args:
    steps: all of them.
    clock: tells seconds.
  """

  def __init__(
    self, steps: Sequence[Step], clock: Callable[[], float] = time.monotonic
  ):
    self._steps, self._clock = list(steps), clock
    self._number, self._seconds, self._weight = 0, 0.0, 0.0

  @contextlib.contextmanager
  def step(self) -> Iterator[Step]:
    """Times the next step, which happens inside."""
    step = self._steps[self._number]
    self._number += 1
    words = ["cached"] if step.is_cached else []
    if left := self.left():
      words.append(f"all: {duration(left)} left")
    told = f" ({'; '.join(words)})" if words else ""
    print(f"[{self._number}/{len(self._steps)}] {step.about}{told}", flush=True)
    begin = self._clock()
    yield step
    seconds = self._clock() - begin
    print(f"      {seconds:.0f} s", flush=True)
    if not step.is_cached:
      self._seconds += seconds
      self._weight += step.weight

  def left(self) -> float | None:
    """Returns the seconds from this step to the end; None where it is not known."""
    if not self._weight:
      return None
    rest = self._steps[max(self._number - 1, 0) :]
    weight = sum(step.weight for step in rest if not step.is_cached)
    return weight * self._seconds / self._weight
