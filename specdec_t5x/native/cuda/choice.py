"""Decides whether a kernel for GPUs is used: if it agrees with XLA's and is faster.

Both run on the same inputs, once for each key and device. The outcome is kept on disk.

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

from specdec_t5x.native import library
from specdec_t5x.native.cuda import library as of_gpu

# A call of either side computes so many results one after another, and is timed so
# many times in turn.
CALLS, ROUNDS = 16, 9

_decided: dict[Hashable, bool] = {}


@dataclasses.dataclass(frozen=True)
class Contest:
  """Our kernel and XLA's part on the same inputs.

  Attributes:
    name: of the part, as messages call it.
    native: computes the results of `CALLS` calls by our kernel.
    xla: computes them by XLA.
    exact: computes them by XLA in float32.
  """

  name: str
  native: Callable[[], Float[Array, "*N V"]]
  xla: Callable[[], Float[Array, "*N V"]]
  exact: Callable[[], Float[Array, "*N V"]]


@dataclasses.dataclass(frozen=True)
class Outcome:
  """The outcome of a contest.

  Attributes:
    errors: of our kernel's results and XLA's: norms, by that of the exact results.
    agrees: whether our kernel's results count as XLA's.
    seconds: of a call of our kernel, and of XLA's part.
  """

  errors: tuple[float, float]
  agrees: bool
  seconds: tuple[float, float]

  def line(self, is_used: bool) -> str:
    """Returns what is used, and why."""
    if not self.agrees:
      ours, xlas = (f"{error:.2g}" for error in self.errors)
      return (
        f"XLA's, for our kernel's results are off by {ours} of their norm, XLA's by "
        f"{xlas}."
      )
    ours, xlas = (f"{float(f'{1e3 * s:.2g}'):g} ms" for s in self.seconds)
    found = f"our kernel takes {ours}, XLA's {xlas}"
    return f"{found}." if is_used else f"{found}: XLA's is used."


def is_used(key: Hashable) -> bool:
  """Returns whether it was decided in this process that this kernel is used."""
  return _decided.get(key, False) and of_gpu.problem() is None


def decide(
  key: Hashable,
  contest: Contest,
  device: Hashable,
  is_asked_for: bool = False,
) -> str | None:
  """Decides whether a kernel is used; returns the message, None if it was decided.

  Args:
    key: the part and its shapes.
    contest: what is compared.
    device: what the outcome depends on beside the key; the `repr` of both names the
      kept outcome.
    is_asked_for: whether PRODUCTS='native' asks for the kernel, however fast it is.

  Raises:
    ValueError: if the kernel is asked for and its results are wrong.
  """
  if key in _decided:
    return None
  path = (
    library.folder() / f"choice-{library.digest(repr((key, device)).encode())}.json"
  )
  try:
    outcome = _read(path) or _found(path, contest)
  except jax.errors.JaxRuntimeError as error:
    is_chosen = False
    found = f"XLA's, for the comparison failed: {str(error).splitlines()[0]}"
  else:
    native, xla = outcome.seconds
    is_chosen = outcome.agrees and (is_asked_for or native < xla)
    found = outcome.line(is_chosen)
  line = f"{contest.name}: {found}"
  if is_asked_for and not is_chosen:
    raise ValueError(f"PRODUCTS='native' can't be had: {line} Use 'auto' or 'xla'.")
  _decided[key] = is_chosen
  return line


def _found(path: pathlib.Path, contest: Contest) -> Outcome:
  """Returns the outcome of a contest, and keeps it."""
  with jax.enable_x64(False):
    outcome = _outcome(contest)
  try:
    library.write_whole(path, json.dumps(dataclasses.asdict(outcome)))
  except OSError as error:
    message = f"What {contest.name} takes is known to this process alone: {error}"
    warnings.warn(message, stacklevel=2)
  return outcome


def _outcome(contest: Contest) -> Outcome:
  with jax.default_matmul_precision("float32"):
    exact = _rows(contest.exact)
  errors, agrees = _compared(_rows(contest.native), _rows(contest.xla), exact)
  seconds = _seconds(contest.native, contest.xla) if agrees else (0.0, 0.0)
  return Outcome(errors, agrees, seconds)


def _rows(run) -> Float[np.ndarray, "N V"]:
  results = np.asarray(run(), np.float32)
  return results.reshape(-1, results.shape[-1])


def _compared(native, xla, exact) -> tuple[tuple[float, float], bool]:
  """Returns both errors, and whether our kernel's results count as XLA's."""
  norm = np.linalg.norm(exact)
  ours, xlas = (float(np.linalg.norm(x - exact) / norm) for x in (native, xla))
  # A margin that XLA's own error may turn around says nothing about our kernel.
  second, first = np.sort(exact, axis=-1)[:, -2:].T
  bounds = 2 * np.linalg.norm(xla - exact, axis=-1)
  bounds += 1e-3 * np.linalg.norm(exact, axis=-1)
  is_clear = first - second > bounds
  is_same = native.argmax(axis=-1) == exact.argmax(axis=-1)
  # A NaN is in no bounds.
  agrees = ours <= 2 * xlas + 1e-3 and bool(is_same[is_clear].all())
  return (ours, xlas), agrees


def _seconds(*runs: Callable[[], Array]) -> tuple[float, ...]:
  """Returns the median seconds of a call of each, which take turns."""
  rounds = []
  for _ in range(ROUNDS):
    rounds.append([])
    for run in runs:
      begin = time.perf_counter()
      run().block_until_ready()
      rounds[-1].append((time.perf_counter() - begin) / CALLS)
  return tuple(np.median(rounds, axis=0).tolist())


def _read(path: pathlib.Path) -> Outcome | None:
  """Returns the kept outcome; None if there is none, or none of use."""
  try:
    kept = json.loads(path.read_text())
    errors, seconds = (tuple(map(float, kept[k])) for k in ("errors", "seconds"))
    found = Outcome(errors, kept["agrees"], seconds)
  except (OSError, ValueError, KeyError, TypeError):
    return None
  is_whole = len(errors) == len(seconds) == 2 and isinstance(found.agrees, bool)
  return found if is_whole else None
