"""A run's wall time and pace, without compilation."""

import os
import time
from typing import Any

import jax

from specdec_t5x import console

_COMPILED = "/jax/core/compile/backend_compile_duration"


class Clock:
  """Times the decoding of a run, without compilation.

  The clock starts after compilation of the decode, and stops with the last chunk of
  outputs.

  Args:
    examples: number of the run's examples, None if the number is unknown.
  """

  def __init__(self, examples: int | None):
    self._examples = examples
    self._is_traced = False  # The decode has been traced, and is compiled next.
    self._begin: float | None = None
    self._end = 0.0
    self._tokens = 0
    self._decoded = 0
    jax.monitoring.register_event_duration_secs_listener(self._heard)

  def tracing(self) -> None:
    """Prints that compilation of the decode has begun. Called during tracing."""
    if self._begin is not None:
      return
    folder = (jax.config.jax_compilation_cache_dir or "").replace(
      os.path.expanduser("~"), "~", 1
    )
    place = folder and f", or reading the program from {folder}"
    console.stage(f"Compiling the decode{place}.")

  def traced(self) -> None:
    """Records that the decode has been traced: the decode is compiled next."""
    self._is_traced = True

  def _heard(self, event: str, *_: Any, **__: Any) -> None:
    if event != _COMPILED or not self._is_traced:
      return
    self._is_traced = False
    if self._begin is None:
      count = "" if self._examples is None else f" {self._examples} examples"
      console.stage(f"Decoding{count}.")
      self._begin = time.perf_counter()

  def decoded(self, examples: int, tokens: int) -> None:
    """Records the end of a chunk with the given numbers of examples and tokens."""
    self._decoded += examples
    self._tokens += tokens
    self._end = time.perf_counter()

  def pace(self) -> dict[str, float]:
    """Returns the seconds of decoding, and rates; empty if nothing was timed."""
    if self._begin is None or not self._tokens:
      return {}
    seconds = self._end - self._begin
    return {
      "decode_seconds": seconds,
      "seconds_per_token": seconds / self._tokens,
      "examples_per_second": self._decoded / seconds,
    }
