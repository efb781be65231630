"""How far a run is, how long it still takes, and what it has measured."""

import json
import time
from collections.abc import Callable, Mapping

from etils import epath
from tqdm import tqdm

METRICS = "metrics.jsonl"
_EVERY = 15.0  # Seconds between lines where there is no terminal.


class MetricsLog:
  """Appends measurements to <directory>/metrics.jsonl, one JSON object a line.

  Args:
    directory: of the run.
    step: the step that a run goes on from; lines of later ones are dropped.
  """

  def __init__(self, directory: str, step: int):
    self._path = epath.Path(directory) / METRICS
    if not self._path.exists():
      return
    # A killed run may have left half a line at the end.
    whole = [x for x in self._path.read_text().splitlines() if x.endswith("}")]
    kept = [line for line in whole if json.loads(line)["step"] <= step]
    partial = self._path.with_name(f"{METRICS}.partial")
    partial.write_text("".join(f"{line}\n" for line in kept))
    partial.replace(self._path)

  def write(self, step: int, values: Mapping[str, float]) -> None:
    """Appends {"step": step, **values}."""
    # Not epath's open(): buckets can't append, and a run's log is on its machine.
    with self._path.open("a") as file:
      file.write(json.dumps({"step": step, **values}) + "\n")


class Progress:
  """A bar on a terminal; elsewhere a line from time to time. A context manager.

  Args:
    total: the run's steps; None where nobody knows.
    first: those that an earlier run took.
    clock: tells seconds.
    report: takes a line.
    unit: a step's name.
  """

  def __init__(
    self,
    total: int | None,
    first: int = 0,
    clock: Callable[[], float] = time.monotonic,
    report: Callable[[str], None] = lambda line: print(line, flush=True),
    unit: str = "step",
  ):
    self._bar = tqdm(total=total, initial=first, unit=unit, disable=None)
    self._total, self._clock, self._report = total, clock, report
    self._unit = unit
    self._loss: float | None = None
    self._begin: tuple[int, float] | None = None  # Behind the step that compiled.
    self._told = clock()

  def __enter__(self):
    return self

  def __exit__(self, *error):
    self._bar.close()

  def show(self, values: Mapping[str, float]) -> None:
    """Takes the loss that was measured last."""
    self._loss = values["loss"]
    self._bar.set_postfix(loss=f"{self._loss:.4f}", refresh=False)

  def after(self, step: int) -> None:
    """Takes note that a step is done."""
    self._bar.update()
    now = self._clock()
    if self._begin is None:
      self._begin = step, now
    if self._bar.disable and now - self._told >= _EVERY and step != self._total:
      self._told = now
      self._report(self._line(step, now))

  def _line(self, step: int, now: float) -> str:
    first, begin = self._begin
    parts = [f"{self._unit} {step}" + (f" of {self._total}" if self._total else "")]
    if self._loss is not None:
      parts.append(f"loss {self._loss:.3f}")
    if step > first and self._total:
      left = (now - begin) / (step - first) * (self._total - step)
      parts.append(f"{duration(left)} left")
    return f"      {', '.join(parts)}"


def duration(seconds: float) -> str:
  """Returns seconds as people say them.

  >>> duration(49), duration(100), duration(1500)
  ('50 s', '1 min 40 s', '25 min')
  """
  seconds = round(seconds, -1)
  minutes, rest = divmod(int(seconds), 60)
  if not minutes:
    return f"{rest} s"
  return f"{minutes} min" + (f" {rest} s" if rest and minutes < 10 else "")
