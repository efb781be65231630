import numpy as np
import pytest

from specdec_t5x.analysis.acceptance import rate, ratio


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
    estimate = rate(rng.binomial(tested, rates), tested)
    covered += estimate.low < 0.6 < estimate.high
  # 95% of 400 is 380; three standard deviations are 13.
  assert 360 <= covered <= 396


@pytest.mark.parametrize("accepted", [0, 1, 30, 59, 60])
def test_a_rate_s_interval_is_wilson_s_for_independent_trials(accepted):
  """Examples of one trial each: the variance is alpha (1 - alpha) / (N - 1)."""
  count = 60
  trials = np.arange(count) < accepted
  estimate = rate(trials, np.ones(count, int))
  n = count if accepted in (0, count) else count - 1
  p, z = accepted / count, 1.959964
  center = (p + z**2 / (2 * n)) / (1 + z**2 / n)
  margin = z * np.sqrt(p * (1 - p) / n + z**2 / (4 * n**2)) / (1 + z**2 / n)
  assert estimate.value == pytest.approx(p)
  assert estimate.low == pytest.approx(center - margin, abs=1e-12)
  assert estimate.high == pytest.approx(center + margin, abs=1e-12)
  assert 0 <= estimate.low <= p <= estimate.high <= 1


def test_a_high_rate_s_interval_stays_below_1():
  # 7 of 8 examples accept everything; a normal interval would end above 1.
  accepted, tested = np.array([10] * 7 + [8]), np.full(8, 10)
  assert ratio(accepted, tested).high > 1
  estimate = rate(accepted, tested)
  assert estimate.low < estimate.value == 78 / 80 < estimate.high < 1
