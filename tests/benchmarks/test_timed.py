"""Programs are timed in turn."""

import numpy as np
import pytest

from benchmarks.timed import alternate, median_ratio


def test_programs_take_turns_and_the_first_round_is_not_timed():
  calls = []

  def program(name):
    return lambda value: calls.append((name, value)) or np.ones(value)

  timed = alternate({"a": program("a"), "b": program("b")}, [1, 2])
  assert calls == [("a", 1), ("b", 1), ("a", 1), ("b", 1), ("b", 2), ("a", 2)]
  assert [result.size for result in timed["b"].results] == [1, 2]
  assert (timed["a"].seconds > 0).all()
  assert timed["a"].seconds.shape == (2,)
  with pytest.raises(ValueError, match="at least 1 program and 1 input"):
    alternate({"a": program("a")}, [])


def test_the_ratio_is_the_median_of_ratios():
  spread = median_ratio(np.array([1.0, 2.0, 30.0]), np.array([1.0, 1.0, 1.0]))
  assert (spread.low, spread.median, spread.high) == (1.5, 2.0, 16.0)
