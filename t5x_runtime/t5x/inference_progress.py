"""A run's progress bar: examples, and the tokens and calls that a model counts."""

import time
from collections.abc import Mapping
from typing import Any

import numpy as np
from tqdm import tqdm


class Progress:
  """Shows how far a run is, and how long it still takes. A context manager.

  The bar appears after the first batch, which may have been compiled for minutes: its
  rates are of the batches after that.

  Args:
    total: examples of the run; None where nobody knows.
    shown: whether there is a bar.
  """

  def __init__(self, total: int | None, shown: bool):
    self._total, self._shown = total, shown
    self._bar: tqdm | None = None
    self._begin = 0.0
    self._tokens = self._calls = 0

  def __enter__(self):
    return self

  def __exit__(self, *error):
    if self._bar is not None:
      self._bar.close()

  def report(self, count: int, aux: Mapping[str, Any]) -> None:
    """Takes note of a finished batch.

    Args:
      count: its examples.
      aux: its auxiliary values; `tokens` and `target_calls` are summed.
    """
    if self._bar is None:
      self._begin = time.perf_counter()
      self._bar = tqdm(
        total=self._total, initial=count, unit=" examples", disable=not self._shown
      )
      return
    self._tokens += int(np.sum(aux.get("tokens", 0)))
    self._calls += int(np.sum(aux.get("target_calls", 0)))
    if self._calls:
      rate = self._tokens / (time.perf_counter() - self._begin)
      per_call = self._tokens / self._calls
      self._bar.set_postfix_str(
        f"{rate:.0f} tokens/s, {per_call:.2f} tokens/call", refresh=False
      )
    self._bar.update(count)
