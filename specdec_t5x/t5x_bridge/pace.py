"""A run's time per token, compared with plain decoding's time per token.

The clock covers decoding only. The clock starts after compilation of the decode, and
stops with the last chunk of outputs.
"""

import dataclasses
import hashlib
import json
import os
import time
from collections.abc import Mapping
from typing import Any

import jax

from specdec_t5x import console, tuning
from specdec_t5x.decoding.decoders import PlainDecoder
from specdec_t5x.native import library

# Maximal number of plain runs per job in a file of times.
_KEPT = 5
_COMPILED = "/jax/core/compile/backend_compile_duration"


@dataclasses.dataclass
class _Run:
  """The run of this process.

  Attributes:
    name: name of the file with plain decoding's times for the same job.
    is_plain: whether this run decodes plainly.
    examples: number of the task's examples, None if the number is unknown.
    is_traced: whether the decode has been traced, and is compiled next.
    begin: start of decoding by the performance counter, in seconds; None before.
    end: end of the last chunk by the performance counter, in seconds.
    tokens: number of tokens that this process has decoded so far.
  """

  name: str
  is_plain: bool
  examples: int | None
  is_traced: bool = False
  begin: float | None = None
  end: float = 0.0
  tokens: int = 0


_run: _Run | None = None
_listens = False


def start(job: Mapping[str, Any], decoder: Any, examples: int | None) -> None:
  """Begins a run, before compilation.

  Args:
    job: settings common to plain and speculative runs: task, lengths, rows, target.
    decoder: DECODER.
    examples: number of the task's examples, None if the number is unknown.
  """
  global _run, _listens
  digest = hashlib.sha256(repr((dict(job), tuning.device())).encode()).hexdigest()
  is_plain = type(decoder) is PlainDecoder and decoder.block == 1
  _run = _Run(digest[:16], is_plain, examples)
  if not _listens:
    jax.monitoring.register_event_duration_secs_listener(_heard)
    _listens = True


def tracing() -> None:
  """Prints that compilation of the decode has begun. Called during tracing."""
  if _run is None or _run.begin is not None:
    return
  cache_dir = jax.config.jax_compilation_cache_dir
  home = os.path.expanduser("~")
  place = f", and kept in {cache_dir.replace(home, '~', 1)}" if cache_dir else ""
  console.stage(f"Compiling the decode: once for these settings{place}.")


def traced() -> None:
  """Records that the decode has been traced, so the next compilation is the decode."""
  if _run is not None:
    _run.is_traced = True


def _heard(event: str, *_: Any, **__: Any) -> None:
  if event != _COMPILED or _run is None or not _run.is_traced:
    return
  _run.is_traced = False
  if _run.begin is None:
    count = "" if _run.examples is None else f" {_run.examples} examples"
    console.stage(f"Decoding{count}.")
    _run.begin = time.perf_counter()


def decoded(tokens: int) -> None:
  """Records the end of a chunk with the given number of tokens."""
  if _run is not None:
    _run.tokens += tokens
    _run.end = time.perf_counter()


def seconds_per_token() -> float | None:
  """Returns this run's seconds per token; None if nothing was timed."""
  if _run is None or _run.begin is None or not _run.tokens:
    return None
  return (_run.end - _run.begin) / _run.tokens


def plain_seconds_per_token(counts: Mapping[str, float]) -> tuple[float, bool] | None:
  """Returns plain decoding's seconds per token for this job, and whether it was run.

  The seconds are those of the fastest of the last plain runs of the same job on this
  machine: other programs slow a run, and no run is too fast. Without a plain run, the
  seconds follow from this run's seconds and from the times of iterations that `tuning`
  measured. Returns None if `tuning` measured no times.

  Args:
    counts: sums over all outputs: tokens, target_calls, drafted, and examples.
  """
  if plain_seconds := _kept():
    return min(plain_seconds), True
  seconds = seconds_per_token()
  speed = tuning.speed_by_iterations(counts)
  return None if seconds is None or speed is None else (seconds * speed, False)


def keep() -> None:
  """Writes this run's time per token to disk if this run decodes plainly."""
  seconds = seconds_per_token()
  if seconds is None or not _run.is_plain:
    return
  try:
    path = _path()
    partial = path.with_suffix(f".{os.getpid()}.tmp")
    path.parent.mkdir(parents=True, exist_ok=True)
    last = [*_kept(), seconds][-_KEPT:]
    partial.write_text(json.dumps({"seconds_per_token": last}))
    partial.replace(path)
  except OSError as error:
    console.say(f"The time of plain decoding is not kept: {error}")


def _kept() -> list[float]:
  """Returns the times of the last plain runs of this job, the newest last."""
  try:
    times = json.loads(_path().read_text())["seconds_per_token"]
    return [float(seconds) for seconds in times]
  except (OSError, ValueError, KeyError, TypeError):
    return []  # Missing or damaged: the next plain run writes the file again.


def _path():
  if _run is None:
    raise OSError("no run has begun")
  return library.folder() / f"plain-{_run.name}.json"
