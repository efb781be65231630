"""Plans and closed forms equal enumerations."""

import itertools

import numpy as np
import pytest

from lab.hierarchy import planner
from lab.hierarchy.planner import Measured
from specdec_t5x.core.theory import expected_tokens, optimal_gamma

GAMMA = 4


def measured(seed, names=("a", "b", "c")):
  """Returns random costs that rise with the block, and random acceptance."""
  rng = np.random.default_rng(seed)
  steps = dict(zip(names, rng.uniform(0, 0.5, len(names)), strict=True))
  sizes = np.arange(1, GAMMA + 1)
  drafts = {name: step * sizes for name, step in steps.items()}

  def block(judge):
    return {"target": 1.0, **steps}[judge] * (1 + 0.05 * sizes) + 0.02

  pairs = [(judge, n) for judge in ("target", *names) for n in names if judge != n]
  iterations = {(judge, n): block(judge) + drafts[n] for judge, n in pairs}
  stand = {p: planner.survival(rng.uniform(0.3, 0.95), GAMMA) for p in pairs}
  return Measured("target", 1.02, drafts, iterations, stand)


def best_plan(*arguments):
  return min(planner.best_plans(*arguments), key=lambda plan: plan.seconds)


def every_plan(names, depth):
  """Yields the chains of at most `depth` drafts with windows that shrink downwards."""
  for levels in range(depth + 1):
    for chosen in itertools.product(names, repeat=levels):
      if any(a == b for a, b in itertools.pairwise(chosen)):
        continue
      for sizes in itertools.combinations(range(1, GAMMA + 1), levels):
        yield tuple(zip(chosen, sizes, strict=True))


@pytest.mark.parametrize("depth", [0, 1, 2, 3])
@pytest.mark.parametrize("seed", range(8))
def test_the_best_plan_equals_brute_force(seed, depth):
  costs = measured(seed)
  plans = [planner.plan_of(costs, x) for x in every_plan("abc", depth)]
  least = min(plan.seconds for plan in plans)
  found = best_plan(costs, depth, GAMMA)
  assert found.seconds == pytest.approx(least, rel=1e-12)
  levels = [len(plan.levels) for plan in planner.best_plans(costs, depth, GAMMA)]
  assert levels == list(range(depth + 1))


def test_one_level_equals_the_paper_s_formula():
  alpha = 0.7
  c = 0.1
  draft = c * np.arange(1, 19)
  pair = ("t", "d")
  stand = {pair: planner.survival(alpha, 18)}
  costs = Measured("t", 1.0, {"d": draft}, {pair: 1 + draft}, stand)
  plan = best_plan(costs, 1, 18)
  gamma = int(optimal_gamma(alpha, c))
  assert plan.levels == (("d", gamma),)
  seconds = (1 + c * gamma) / expected_tokens(alpha, gamma)
  assert plan.seconds == pytest.approx(seconds)


def enumerated_calls(alpha, gamma, window):
  """Returns the mean calls per window over every outcome of the tokens' tests."""
  mean = 0.0
  for events in itertools.product([True, False], repeat=window):
    calls = left = 0
    starts = True
    for place, accepted in enumerate(events):
      if starts:
        calls += 1
        left = min(gamma, window - place - 1)
      starts = not (left > 0 and accepted)
      left -= 1
    accepted = sum(events)
    mean += calls * alpha**accepted * (1 - alpha) ** (window - accepted)
  return mean


@pytest.mark.parametrize("gamma", [1, 3])
@pytest.mark.parametrize("alpha", [0.0, 0.3, 0.75, 1.0])
def test_calls_per_window_equal_an_enumeration(alpha, gamma):
  below = planner.survival(alpha, gamma)
  for window in (2, 4, 6):
    expected = enumerated_calls(alpha, gamma, window)
    found = planner.calls_per_window(below, gamma, window)
    assert found == pytest.approx(expected)


def test_two_levels_equal_a_plan_by_hand():
  """The time of two levels equals the time computed by hand.

  A window of 2 with a lower draft of 1 takes 1.25 iterations of 0.3 instead of 0.4.
  """
  pairs = {("t", "d"): [1.3, 1.6], ("d", "c"): [0.3, 0.4], ("t", "c"): [1.1, 1.2]}
  stand = {("t", "d"): [0.5, 0.25], ("d", "c"): [0.75, 0.5], ("t", "c"): [0.1, 0.0]}
  costs = Measured("t", 1.0, {"d": [0.2, 0.4], "c": [0.05, 0.1]}, pairs, stand)
  plan = planner.plan_of(costs, (("c", 1), ("d", 2)))
  assert plan.seconds == pytest.approx((1.6 - 0.4 + 1.25 * 0.3) / 1.75)


def test_incomplete_measurements_are_refused():
  pair = ("t", "d")
  with pytest.raises(ValueError, match="Expected times and acceptance of 1 to G"):
    Measured("t", 1.0, {"d": [0.1]}, {pair: [1.0]}, {pair: [0.5, 0.2]})
  with pytest.raises(ValueError, match="Expected times and acceptance of 1 to G"):
    Measured("t", 1.0, {"d": [0.1]}, {}, {pair: [0.5]})
  with pytest.raises(ValueError, match="Expected a depth of at least 0"):
    best_plan(measured(0), -1, GAMMA)
