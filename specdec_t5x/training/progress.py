"""Progress, remaining time and measurements of a run."""

import json
import time
from collections.abc import Callable, Mapping

from etils import epath
from tqdm import tqdm

METRICS = "metrics.jsonl"
_EVERY = 15.0  # Seconds between lines if there is no terminal.


class MetricsLog:
  """Appends measurements to <directory>/metrics.jsonl, one JSON object per line.

  Args:
    directory: the run's directory.
    step: step at which the run resumes; lines of later steps are removed.
  """

  def __init__(self, directory: str, step: int):
    self._path = epath.Path(directory) / METRICS
    if not self._path.exists():
      return
    # A killed run may have written only a part of the last line.
    lines = [x for x in self._path.read_text().splitlines() if x.endswith("}")]
    old_lines = [line for line in lines if json.loads(line)["step"] <= step]
    partial = self._path.with_name(f"{METRICS}.partial")
    partial.write_text("".join(f"{line}\n" for line in old_lines))
    partial.replace(self._path)

  def write(self, step: int, values: Mapping[str, float]) -> None:
    """Appends {"step": step, **values}."""
    # epath's open() can't append in buckets, and the log is a local file anyway.
    with self._path.open("a") as file:
      file.write(json.dumps({"step": step, **values}) + "\n")


class Progress:
  """A progress bar on a terminal, or else periodic lines; a context manager.

  Args:
    total: number of the run's steps; None if unknown.
    first: number of steps of an earlier run.
    clock: returns the time in seconds.
    report: prints a line.
    unit: name of a step.
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
    self._total = total
    self._clock = clock
    self._report = report
    self._unit = unit
    self._loss: float | None = None
    # Step and time after the first step, which includes compilation.
    self._begin: tuple[int, float] | None = None
    self._last_report = clock()

  def __enter__(self):
    return self

  def __exit__(self, *error):
    self._bar.close()

  def show(self, values: Mapping[str, float]) -> None:
    """Shows the last measured loss."""
    self._loss = values["loss"]
    self._bar.set_postfix(loss=f"{self._loss:.4f}", refresh=False)

  def after(self, step: int) -> None:
    """Records the end of a step."""
    self._bar.update()
    now = self._clock()
    if self._begin is None:
      self._begin = (step, now)
    is_due = now - self._last_report >= _EVERY and step != self._total
    if self._bar.disable and is_due:
      self._last_report = now
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
  """Returns a duration in words.

  >>> duration(49), duration(100), duration(1500)
  ('50 s', '1 min 40 s', '25 min')
  """
  seconds = round(seconds, -1)
  minutes, seconds = divmod(int(seconds), 60)
  if not minutes:
    return f"{seconds} s"
  return f"{minutes} min" + (f" {seconds} s" if seconds and minutes < 10 else "")
