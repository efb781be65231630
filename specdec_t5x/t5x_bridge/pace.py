"""A run's time per token, compared with plain decoding's time per token.

The clock covers decoding only. The clock starts after compilation of the decode, and
stops with the last chunk of outputs.
"""

import dataclasses
import os
import pathlib
import time
from typing import Any

import jax

from specdec_t5x import console

_COMPILED = "/jax/core/compile/backend_compile_duration"


@dataclasses.dataclass
class _Run:
  """The run of this process.

  Attributes:
    examples: number of the task's examples, None if the number is unknown.
    is_traced: whether the decode has been traced, and is compiled next.
    begin: start of decoding by the performance counter, in seconds; None before.
    end: end of the last chunk by the performance counter, in seconds.
    tokens: number of tokens that this process has decoded so far.
  """

  examples: int | None
  is_traced: bool = False
  begin: float | None = None
  end: float = 0.0
  tokens: int = 0


_run: _Run | None = None
_listens = False


def start(examples: int | None) -> None:
  """Begins a run, before compilation.

  Args:
    examples: number of the task's examples, None if the number is unknown.
  """
  global _run, _listens
  _run = _Run(examples)
  if not _listens:
    jax.monitoring.register_event_duration_secs_listener(_heard)
    _listens = True


def tracing() -> None:
  """Prints that compilation of the decode has begun. Called during tracing."""
  if _run is None or _run.begin is not None:
    return
  cache_dir = jax.config.jax_compilation_cache_dir
  home = os.path.expanduser("~")
  is_kept = cache_dir and ("://" in cache_dir or _is_writable(cache_dir))
  place = f", and kept in {cache_dir.replace(home, '~', 1)}" if is_kept else ""
  console.stage(f"Compiling the decode: once for these settings{place}.")


def _is_writable(folder: str) -> bool:
  """Returns whether a folder is writable, or can be made."""
  path = pathlib.Path(folder).absolute()
  existing = next(place for place in (path, *path.parents) if place.exists())
  return existing.is_dir() and os.access(existing, os.W_OK)


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
