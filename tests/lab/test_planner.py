"""Plans against brute force, closed forms against simulation."""

import itertools

import numpy as np
import pytest

from lab.hierarchy import planner
from lab.hierarchy.planner import Measured
from specdec_t5x.analysis.theory import acceptance, expected_tokens, optimal_gamma
from tests.lab.simulated import hierarchy_tokens

GAMMA = 4


def measured(seed, names=("a", "b", "c")):
  """Random costs that rise with the block, and random acceptance."""
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


def best_plan(*given):
  return min(planner.best_plans(*given), key=lambda plan: plan.seconds)


def every_plan(names, depth):
  """All chains of at most `depth` drafts whose windows shrink downwards."""
  for levels in range(depth + 1):
    for chosen in itertools.product(names, repeat=levels):
      if any(a == b for a, b in itertools.pairwise(chosen)):
        continue
      for sizes in itertools.combinations(range(1, GAMMA + 1), levels):
        yield tuple(zip(chosen, sizes, strict=True))


@pytest.mark.parametrize("depth", [0, 1, 2, 3])
@pytest.mark.parametrize("seed", range(8))
def test_the_best_plan_is_that_of_brute_force(seed, depth):
  known = measured(seed)
  plans = [planner.plan_of(known, x) for x in every_plan("abc", depth)]
  least = min(plan.seconds for plan in plans)
  found = best_plan(known, depth, GAMMA)
  assert found.seconds == pytest.approx(least, rel=1e-12)
  levels = [len(plan.levels) for plan in planner.best_plans(known, depth, GAMMA)]
  assert levels == list(range(depth + 1))


def test_deeper_plans_are_sometimes_best_and_sometimes_not():
  depths = {len(best_plan(measured(seed), 3, GAMMA).levels) for seed in range(40)}
  assert depths >= {1, 2}


def test_one_level_is_the_paper_s_formula():
  alpha, c = 0.7, 0.1
  draft, pair = c * np.arange(1, 19), ("t", "d")
  stand = {pair: planner.survival(alpha, 18)}
  known = Measured("t", 1.0, {"d": draft}, {pair: 1 + draft}, stand)
  plan = best_plan(known, 1, 18)
  gamma = int(optimal_gamma(alpha, c))
  assert plan.levels == (("d", gamma),)
  seconds = (1 + c * gamma) / expected_tokens(alpha, gamma)
  assert plan.seconds == pytest.approx(seconds)


def test_calls_by_hand():
  """Of a window of 2, one drafted: one call where it stands, else two."""
  assert planner.calls_per_window([0.75], 1, 2) == pytest.approx(1.25)
  assert planner.calls_per_window([0.0] * 3, 3, 4) == pytest.approx(4)
  assert planner.calls_per_window([1.0] * 3, 3, 8) == pytest.approx(2)


def distributions(seed, size=5, places=6):
  """One probs at all places for each of three models, each nearer to the one above."""
  rng = np.random.default_rng(seed)
  p = rng.dirichlet(np.ones(size))
  q = 0.7 * p + 0.3 * rng.dirichlet(np.ones(size))
  lower = 0.6 * q + 0.4 * rng.dirichlet(np.ones(size))
  return [np.tile(distribution, (places, 1)) for distribution in (p, q, lower)]


@pytest.mark.parametrize("gamma", [1, 3])
@pytest.mark.parametrize("seed", range(3))
def test_fixed_windows_follow_the_closed_form(seed, gamma):
  p, q, lower = distributions(seed)
  rng = np.random.default_rng(0)
  (tokens, of_tokens), (calls, of_calls) = hierarchy_tokens(
    p, q, lower, gamma, 100_000, rng
  )
  stand = planner.survival(acceptance(p, q)[0], len(p))
  below = planner.survival(acceptance(q, lower)[0], gamma)
  assert tokens == pytest.approx(
    planner.tokens_per_call(stand, len(p)), abs=4 * of_tokens
  )
  assert calls == pytest.approx(
    planner.calls_per_window(below, gamma, len(p)), abs=4 * of_calls
  )


def test_levels_are_not_independent_where_a_correction_ends_the_window():
  """Whether the lowest draft said a token says something of whether it stands."""
  p, q, lower = distributions(1)
  (tokens, error), _ = hierarchy_tokens(
    p, q, lower, 2, 100_000, np.random.default_rng(0), flush=True
  )
  alpha, below = acceptance(p, q)[0], acceptance(q, lower)[0]
  # Of places 0, 3, 6, .. the token is the middle network's own, and ends nothing.
  opens = np.cumprod([1.0, *(below if i % 3 != 2 else 1.0 for i in range(len(p) - 1))])
  independent = 1 + (opens * alpha ** np.arange(1, len(p) + 1)).sum()
  assert abs(tokens - independent) > 4 * error


def test_two_levels_by_hand():
  """Windows of 2, one drafted below: 1.25 iterations of .3 where a draft took .4."""
  pairs = {("t", "d"): [1.3, 1.6], ("d", "c"): [0.3, 0.4], ("t", "c"): [1.1, 1.2]}
  stand = {("t", "d"): [0.5, 0.25], ("d", "c"): [0.75, 0.5], ("t", "c"): [0.1, 0.0]}
  known = Measured("t", 1.0, {"d": [0.2, 0.4], "c": [0.05, 0.1]}, pairs, stand)
  plan = planner.plan_of(known, (("c", 1), ("d", 2)))
  assert plan.seconds == pytest.approx((1.6 - 0.4 + 1.25 * 0.3) / 1.75)


def test_too_few_costs_are_refused():
  pair = ("t", "d")
  with pytest.raises(ValueError, match="Expected drafts of 1 to G tokens of every"):
    Measured("t", 1.0, {"d": [0.1]}, {pair: [1.0]}, {pair: [0.5, 0.2]})
  with pytest.raises(ValueError, match="Expected drafts of 1 to G tokens of every"):
    Measured("t", 1.0, {"d": [0.1]}, {}, {pair: [0.5]})
  with pytest.raises(ValueError, match="Expected a depth of at least 0"):
    best_plan(measured(0), -1, GAMMA)
