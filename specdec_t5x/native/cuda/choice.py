"""Decides whether a kernel for GPUs is used: if it agrees with XLA and is faster.

The kernel and XLA run on the same inputs, once for each key and device. The outcome is
kept on disk.

Shapes: N results, V numbers of a result.
"""

import dataclasses
import json
import pathlib
import time
import warnings
from collections.abc import Callable, Hashable

import jax
import numpy as np
from jaxtyping import Array, Float

from specdec_t5x.core.knobs import KnobError
from specdec_t5x.native import library
from specdec_t5x.native.cuda import library as of_gpu


@dataclasses.dataclass(frozen=True)
class Contest:
  """A part of a program computed by our kernel and by XLA, on the same inputs.

  Attributes:
    name: name of the part, for messages.
    native: function that computes `Choices.calls` results by our kernel.
    xla: function that computes the results by XLA.
    exact: function that computes the results by XLA in float32.
  """

  name: str
  native: Callable[[], Float[Array, "*N V"]]
  xla: Callable[[], Float[Array, "*N V"]]
  exact: Callable[[], Float[Array, "*N V"]]


@dataclasses.dataclass(frozen=True)
class Outcome:
  """The outcome of a contest.

  Attributes:
    errors: relative errors of our kernel's results and of XLA's: the norm of the
      difference from the exact results, divided by the norm of the exact results.
    agrees: whether our kernel's results are accepted in place of XLA's.
    seconds: time per result of our kernel and of XLA, in seconds.
  """

  errors: tuple[float, float]
  agrees: bool
  seconds: tuple[float, float]

  def line(self, is_used: bool) -> str:
    """Returns a message with the choice and the reason."""
    if not self.agrees:
      ours, xlas = (f"{error:.2g}" for error in self.errors)
      return (
        f"XLA's, because our kernel's results are off by {ours} of the norm, and XLA's "
        f"by {xlas}."
      )
    ours, xlas = (f"{float(f'{1e3 * s:.2g}'):g} ms" for s in self.seconds)
    times = f"our kernel takes {ours}, XLA's {xlas}"
    return f"{times}." if is_used else f"{times}: XLA's is used."


def seconds_of(*runs: Callable[[], Array], rounds: int = 9) -> tuple[float, ...]:
  """Returns the median seconds of each run; the runs alternate."""
  seconds = np.zeros((rounds, len(runs)))
  for i, j in np.ndindex(seconds.shape):
    begin = time.perf_counter()
    runs[j]().block_until_ready()
    seconds[i, j] = time.perf_counter() - begin
  return tuple(np.median(seconds, axis=0).tolist())


@dataclasses.dataclass(frozen=True, eq=False)
class Choices:
  """The choices between our kernels and XLA, each made once.

  Attributes:
    calls: number of successive results that a run of a contest computes.
    clock: function that returns the seconds of each of several runs.
    decided: whether our kernel is used, by key.
  """

  calls: int = 16
  clock: Callable[..., tuple[float, ...]] = seconds_of
  decided: dict[Hashable, bool] = dataclasses.field(default_factory=dict)

  def is_used(self, key: Hashable) -> bool:
    """Returns whether the kernel was chosen."""
    return self.decided.get(key, False) and of_gpu.problem() is None

  def decide(
    self, key: Hashable, contest: Contest, device: Hashable, is_asked_for: bool = False
  ) -> str | None:
    """Decides whether a kernel is used, and returns a message; None if decided before.

    Args:
      key: the part and the part's shapes.
      contest: the kernel and XLA's computation.
      device: the device and all further conditions of the outcome. The kept outcome is
        named by the `repr` of key and device.
      is_asked_for: whether PRODUCTS='native' asks for the kernel, fast or not.

    Raises:
      ValueError: if the kernel is asked for, and the results do not agree or the
        comparison fails.
    """
    if key in self.decided:
      return None
    digest = library.digest(repr((key, device)).encode())
    path = library.folder() / f"choice-{digest}.json"
    try:
      outcome = _read(path) or self._measure(path, contest)
    except jax.errors.JaxRuntimeError as error:
      is_chosen = False
      reason = f"XLA's, because the comparison failed: {str(error).splitlines()[0]}"
    else:
      native, xla = outcome.seconds
      is_chosen = outcome.agrees and (is_asked_for or native < xla)
      reason = outcome.line(is_chosen)
    line = f"{contest.name}: {reason}"
    if is_asked_for and not is_chosen:
      raise KnobError(
        "{products}='native' is not available: {line} Use 'auto' or 'xla'.", line=line
      )
    self.decided[key] = is_chosen
    return line

  def _measure(self, path: pathlib.Path, contest: Contest) -> Outcome:
    """Returns the outcome of a contest, and writes the outcome to `path`."""
    with jax.enable_x64(False):
      with jax.default_matmul_precision("float32"):
        exact = _rows(contest.exact)
      errors, agrees = _compared(_rows(contest.native), _rows(contest.xla), exact)
      seconds = self.clock(contest.native, contest.xla) if agrees else (0.0, 0.0)
    outcome = Outcome(errors, agrees, tuple(x / self.calls for x in seconds))
    try:
      library.write_whole(path, json.dumps(dataclasses.asdict(outcome)))
    except OSError as error:
      message = (
        f"The measured times of {contest.name} are for this process alone: {error}"
      )
      warnings.warn(message, stacklevel=2)
    return outcome


# The choices of this process.
CHOICES = Choices()


def _rows(run) -> Float[np.ndarray, "N V"]:
  results = np.asarray(run(), np.float32)
  return results.reshape(-1, results.shape[-1])


def _compared(native, xla, exact) -> tuple[tuple[float, float], bool]:
  """Returns both relative errors, and whether our kernel's results are accepted."""
  norm = np.linalg.norm(exact)
  ours = float(np.linalg.norm(native - exact) / norm)
  xlas = float(np.linalg.norm(xla - exact) / norm)
  # The argmax is compared only if the margin exceeds XLA's error.
  second, first = np.sort(exact, axis=-1)[:, -2:].T
  bounds = 2 * np.linalg.norm(xla - exact, axis=-1)
  bounds += 1e-3 * np.linalg.norm(exact, axis=-1)
  is_clear = first - second > bounds
  is_same = native.argmax(axis=-1) == exact.argmax(axis=-1)
  # With a NaN among the errors the comparison is false.
  agrees = ours <= 2 * xlas + 1e-3 and bool(is_same[is_clear].all())
  return (ours, xlas), agrees


def _read(path: pathlib.Path) -> Outcome | None:
  """Returns the kept outcome; None if the file is missing or invalid."""
  try:
    fields = json.loads(path.read_text())
    ours, xlas = map(float, fields["errors"])
    native, xla = map(float, fields["seconds"])
    return Outcome((ours, xlas), bool(fields["agrees"]), (native, xla))
  except (OSError, ValueError, KeyError, TypeError):
    return None
