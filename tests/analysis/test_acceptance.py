import numpy as np
import pytest

from specdec_t5x.analysis.acceptance import ratio


def test_ratio_by_hand():
  # alpha = 6/10; deviations 3 - .6*4, 3 - .6*6 are +-0.6: s^2 sum 0.72, margin
  # 1.96 sqrt(2 * 0.72) / 10.
  estimate = ratio(np.array([3, 3]), np.array([4, 6]))
  assert estimate.value == pytest.approx(0.6)
  assert estimate.high - estimate.value == pytest.approx(0.2352, abs=1e-4)
  assert estimate.value - estimate.low == pytest.approx(0.2352, abs=1e-4)


def test_too_little_data_gives_no_estimate():
  assert ratio(np.zeros(3), np.zeros(3)).value is None
  assert ratio(np.array([1]), np.array([2])).low is None


def test_intervals_cover_the_truth_when_examples_differ():
  rng = np.random.default_rng(0)
  covered = 0
  for _ in range(400):
    tested = rng.integers(1, 20, size=60)
    rates = rng.beta(3, 2, size=60)
    estimate = ratio(rng.binomial(tested, rates), tested)
    covered += estimate.low < 0.6 < estimate.high
  # 95% of 400 is 380; three standard deviations are 13.
  assert 360 <= covered <= 396
