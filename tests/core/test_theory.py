"""The closed forms against enumeration in exact fractions; estimates of rates."""

import itertools
from fractions import Fraction

import numpy as np
import pytest

from specdec_t5x.core.theory import (
  expected_tokens,
  lenient_acceptance,
  operations_factor,
  optimal_gamma,
  rate,
  ratio,
  walltime_improvement,
)

ALPHAS = [Fraction(0), Fraction(1, 3), Fraction(3, 4), Fraction(99, 100), Fraction(1)]
GAMMAS = [0, 1, 2, 5]
HALVES = [0.5, 0.5]
COSTS = [Fraction(0), Fraction(1, 50), Fraction(1, 2), Fraction(2)]


def enumerated_tokens(alpha, gamma):
  """Returns an iteration's mean tokens over every outcome of gamma accept events."""
  mean = Fraction(0)
  for events in itertools.product([True, False], repeat=gamma):
    chance = Fraction(1)
    for accepted in events:
      chance *= alpha if accepted else 1 - alpha
    leading = sum(1 for _ in itertools.takewhile(bool, events))
    mean += chance * (leading + 1)
  return mean


def enumerated_acceptance(p, q, lenience):
  """Returns the sum over x of q(x) times the length of r's accepting interval."""
  drafts = [(a, b) for a, b in zip(p, q, strict=True) if b > 0]
  return sum(b * min(Fraction(1), a / (lenience * b)) for a, b in drafts)


def random_probs(count, size=5, seed=0):
  """Yields pairs of distributions in fractions; some tokens have no mass."""
  weights = np.random.default_rng(seed).integers(0, 6, size=(count, 2, size))
  weights[..., 0] += 1
  for pair in weights.tolist():
    yield tuple(
      [Fraction(w, sum(distribution)) for w in distribution] for distribution in pair
    )


def floats(distribution):
  return np.array([float(x) for x in distribution])


@pytest.mark.parametrize("gamma", GAMMAS)
@pytest.mark.parametrize("alpha", ALPHAS)
def test_expected_tokens_is_the_mean_over_all_accept_events(alpha, gamma):
  oracle = float(enumerated_tokens(alpha, gamma))
  assert expected_tokens(float(alpha), gamma) == pytest.approx(oracle, rel=1e-13)


@pytest.mark.parametrize("alpha", [1 - 1e-6, 1 - 1e-12, np.nextafter(1, 0), 1e-300])
def test_expected_tokens_keeps_its_digits_near_the_ends(alpha):
  powers = sum(Fraction(alpha) ** i for i in range(9))
  assert expected_tokens(alpha, 8) == pytest.approx(float(powers), rel=1e-14)


@pytest.mark.parametrize(
  ("alpha", "gamma", "c"),
  [
    (ALPHAS[i], GAMMAS[j], COSTS[(i + j) % len(COSTS)])
    for i, j in np.ndindex(len(ALPHAS), len(GAMMAS))
  ],
)
def test_speed_and_operations_are_ratios_of_enumerated_means(alpha, gamma, c):
  tokens = enumerated_tokens(alpha, gamma)
  # An iteration lasts gamma draft steps and a target step for any acceptance.
  speed = float(tokens / (gamma * c + 1))
  computed = walltime_improvement(float(alpha), gamma, float(c))
  assert computed == pytest.approx(speed, rel=1e-13)
  # The target scores gamma + 1 tokens and the draft makes gamma tokens.
  operations = float((gamma + 1 + gamma * c) / tokens)
  computed = operations_factor(float(alpha), gamma, float(c))
  assert computed == pytest.approx(operations, rel=1e-13)


def test_shapes_broadcast_in_float64():
  alphas = np.float32([[0.5], [0.75], [1.0]])
  gammas = [1, 2]
  table = walltime_improvement(alphas, gammas, 0.25)
  assert table.shape == (3, 2)
  assert table.dtype == np.float64
  assert table[1, 1] == walltime_improvement(0.75, 2, 0.25)
  assert optimal_gamma(alphas, [0.0, 0.1, 0.2, 0.3]).shape == (3, 4)
  assert np.ndim(expected_tokens(0.5, 2)) == np.ndim(optimal_gamma(0.5, 0.1)) == 0


def best_gamma(alpha, c, largest):
  tokens = Fraction(1)
  speeds = [Fraction(1)]
  for gamma in range(1, largest + 1):
    tokens += alpha**gamma
    speeds.append(tokens / (gamma * c + 1))
  return speeds.index(max(speeds)), max(speeds)


def test_optimal_gamma_is_the_maximum_and_positive_if_alpha_exceeds_c():
  for a, b in itertools.product(range(0, 100, 7), range(1, 100, 9)):
    alpha, c = Fraction(a, 100), Fraction(b, 100)
    gamma, speed = best_gamma(alpha, c, 40)
    computed = optimal_gamma(float(alpha), float(c), max_gamma=40)
    assert computed == gamma, (alpha, c)
    assert (gamma > 0) == (alpha > c)
    assert speed >= max(Fraction(1), (1 + alpha) / (1 + c) * (alpha > c))


def test_no_speculation_if_the_draft_costs_as_much_as_the_gain():
  # (1 + alpha) / (1 + c) = 1 exactly; rounding must not change the result.
  alphas = np.linspace(0, 1, 1001)
  np.testing.assert_array_equal(optimal_gamma(alphas, alphas), 0)
  assert optimal_gamma(0.9, 3.0) == 0


def test_an_oracle_gains_at_most_the_paper_s_60_percent():
  # Section 3.5: "up to about 60%"; docs/math.md derives e / (e - 1) - 1 = 58%.
  bound = np.e / (np.e - 1)
  alphas = np.linspace(0, 0.98, 99)[:, None]
  costs = np.linspace(0.001, 1, 60)
  best = walltime_improvement(alphas, optimal_gamma(alphas, costs), costs)
  gains = 1 / (1 - alphas + alphas * costs) / best
  assert gains.min() >= 1 - 1e-12
  assert gains.max() <= bound
  # The bound is nearly attained at c = (1 - alpha) / (e - 2) as alpha tends to 1.
  alpha = 0.999
  c = 0.001 / (np.e - 2)
  best = walltime_improvement(alpha, np.arange(3000), c).max()
  assert 1 / (1 - alpha + alpha * c) / best == pytest.approx(bound, rel=1e-3)


@pytest.mark.parametrize("lenience", [Fraction(1), Fraction(1, 2), Fraction(1, 10)])
def test_acceptance_over_all_drafts(lenience):
  for p, q in random_probs(50):
    alpha = float(enumerated_acceptance(p, q, lenience))
    p, q = floats(p), floats(q)
    found = lenient_acceptance(p, q, float(lenience))
    assert found == pytest.approx(alpha, abs=1e-14)


def test_lenient_acceptance_by_hand():
  p, q = [0.5, 0.5, 0.0], [0.25, 0.7, 0.05]
  # min(p / l, q): .25 + .5 + 0, then .25 + .7 + 0: tokens with p = 0 stay excluded.
  np.testing.assert_allclose(
    lenient_acceptance(p, q, [1.0, 0.5, 0.1]), [0.75, 0.95, 0.95]
  )
  batch = lenient_acceptance([p, q], q, [[1.0], [0.5]])
  np.testing.assert_allclose(batch, [[0.75, 1.0], [0.95, 1.0]])
  np.testing.assert_allclose(lenient_acceptance([p, q], q), [0.75, 1.0])


def test_ratio_by_hand():
  # alpha = 6/10; deviations 3 - .6*4, 3 - .6*6 are +-0.6: s^2 sum 0.72, margin
  # 1.96 sqrt(2 * 0.72) / 10.
  estimate = ratio(np.array([3, 3]), np.array([4, 6]))
  assert estimate.value == pytest.approx(0.6)
  assert estimate.high - estimate.value == pytest.approx(0.2352, abs=1e-4)
  assert estimate.value - estimate.low == pytest.approx(0.2352, abs=1e-4)
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


@pytest.mark.parametrize(
  ("call", "message"),
  [
    (lambda: expected_tokens(75, 3), "alpha must be between 0 and 1, got 75.0"),
    (lambda: expected_tokens(np.nan, 3), "alpha must be .* got nan"),
    (lambda: expected_tokens([0.5, -0.5], 3), "got -0.5"),
    (lambda: expected_tokens(0.5, 2.5), "gamma must be a whole number .* got 2.5"),
    (lambda: walltime_improvement(0.5, 3, -0.1), "c must be a finite .* got -0.1"),
    (lambda: operations_factor(0.5, 3, np.inf), "c_hat must be a finite .* got inf"),
    (lambda: optimal_gamma(0.5, 0.1, max_gamma=0), "max_gamma must be .* got 0"),
    (lambda: lenient_acceptance(HALVES, [1.0]), r"got shapes \(2,\) and \(1,\)"),
    (lambda: lenient_acceptance(1.0, 1.0), "one vocabulary along the last axis"),
    (lambda: lenient_acceptance([2.0, -1.0], HALVES), "p must be prob.* got -1"),
    (lambda: lenient_acceptance(HALVES, [3.0, 1.0]), "q's sum .* be 1, got 4.0"),
    (lambda: lenient_acceptance([1.0], [1.0], 0), "lenience must be .* got 0.0"),
  ],
)
def test_out_of_range_is_refused(call, message):
  with pytest.raises(ValueError, match=message):
    call()
