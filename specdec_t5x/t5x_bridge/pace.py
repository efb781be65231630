"""How long a run's decoding takes per token, next to plain decoding's time.

Only decoding counts: the clock starts when the decode has been compiled, and stops with
the last chunk of outputs.
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

# Plain runs of a job whose times are kept.
_KEPT = 5
_COMPILED = "/jax/core/compile/backend_compile_duration"


@dataclasses.dataclass
class _Run:
  """The run of this process.

  Attributes:
    name: of the file that keeps plain decoding's time for the same job.
    is_plain: whether this run decodes plainly.
    examples: of the task, None where the task can't tell.
    is_traced: whether the decode has been traced, and is compiled next.
    begin: when decoding began, by the clock; None before.
    end: when the last chunk was done.
    tokens: decoded so far by this process.
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
  """Begins a run, before anything is compiled.

  Args:
    job: what a plain and a speculative run have in common: task, lengths, rows, target.
    decoder: DECODER.
    examples: of the task, None where the task can't tell.
  """
  global _run, _listens
  digest = hashlib.sha256(repr((dict(job), tuning.device())).encode()).hexdigest()
  is_plain = type(decoder) is PlainDecoder and decoder.block == 1
  _run = _Run(digest[:16], is_plain, examples)
  if not _listens:
    jax.monitoring.register_event_duration_secs_listener(_heard)
    _listens = True


def tracing() -> None:
  """Says that the decode is being compiled. Called while the decode is traced."""
  if _run is None or _run.begin is not None:
    return
  kept = jax.config.jax_compilation_cache_dir
  home = os.path.expanduser("~")
  where = f", and kept in {kept.replace(home, '~', 1)}" if kept else ""
  console.stage(f"Compiling the decode: once for these settings{where}.")


def traced() -> None:
  """Takes note that the decode has been traced; what is compiled next is the decode."""
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
  """Takes note that a chunk with so many tokens is done."""
  if _run is not None:
    _run.tokens += tokens
    _run.end = time.perf_counter()


def seconds_per_token() -> float | None:
  """Returns the seconds of a token of this run; None where nothing was timed."""
  if _run is None or _run.begin is None or not _run.tokens:
    return None
  return (_run.end - _run.begin) / _run.tokens


def plain_seconds_per_token(counts: Mapping[str, float]) -> tuple[float, bool] | None:
  """Returns plain decoding's seconds per token for this job, and whether it was run.

  They are what the fastest of the last plain runs of the same job took on this machine:
  other programs slow a run, and no run is too fast. Where there was none they follow
  from this run's own and from the times of iterations that `tuning` measured; None
  where it measured none.

  Args:
    counts: of all outputs: tokens, target_calls, drafted, and examples.
  """
  if kept := _kept():
    return min(kept), True
  seconds, speed = seconds_per_token(), tuning.speed_by_iterations(counts)
  return None if seconds is None or speed is None else (seconds * speed, False)


def keep() -> None:
  """Keeps the time of this run's tokens, if this run decodes plainly."""
  found = seconds_per_token()
  if found is None or not _run.is_plain:
    return
  try:
    path = _path()
    partial = path.with_suffix(f".{os.getpid()}.tmp")
    path.parent.mkdir(parents=True, exist_ok=True)
    last = [*_kept(), found][-_KEPT:]
    partial.write_text(json.dumps({"seconds_per_token": last}))
    partial.replace(path)
  except OSError as error:
    console.say(f"The time of plain decoding is not kept: {error}")


def _kept() -> list[float]:
  """Returns the times of the last plain runs of this job, the newest last."""
  try:
    found = json.loads(_path().read_text())["seconds_per_token"]
    return [float(seconds) for seconds in found]
  except (OSError, ValueError, KeyError, TypeError):
    return []  # Never measured, or damaged: the next plain run writes it again.


def _path():
  if _run is None:
    raise OSError("no run has begun")
  return library.folder() / f"plain-{_run.name}.json"
