"""A run's progress bar, with counts of examples, tokens and target calls."""

import time
from collections.abc import Mapping
from typing import Any

import numpy as np
from tqdm import tqdm

from t5x import messages


class Progress:
  """Shows the progress and the remaining time of a run; a context manager.

  The bar appears after the first batch, because compilation may take minutes. The rates
  exclude the first batch.

  Args:
    total: number of the run's examples; None if unknown.
    shown: whether to show the bar.
  """

  def __init__(self, total: int | None, shown: bool):
    self._total = total
    self._shown = shown
    self._bar: tqdm | None = None
    self._begin = 0.0
    self._tokens = 0
    self._calls = 0

  def __enter__(self):
    return self

  def __exit__(self, *error):
    if self._bar is not None:
      self._bar.close()

  def report(self, count: int, aux: Mapping[str, Any]) -> None:
    """Records a finished batch.

    Args:
      count: number of examples in the batch.
      aux: auxiliary values of the batch; the bar shows rates of `tokens` and
        `target_calls`.
    """
    if self._bar is None:
      self._begin = time.perf_counter()
      self._bar = tqdm(
        total=self._total,
        initial=count,
        unit=" examples",
        disable=not self._shown,
        file=messages.stderr(),
        dynamic_ncols=True,
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
