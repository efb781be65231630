"""The predicted speed of drafting without sublayers, and the order of the knapsack."""

import numpy as np
import pytest

from lab.layers.costs import LayerCosts, knapsack
from specdec_t5x.core.theory import optimal_gamma, walltime_improvement

KINDS = {"self": 0.1, "cross": 0.05, "mlp": 0.2}


def test_speed_equals_theorem_3_8_if_a_block_costs_a_token():
  costs = LayerCosts(KINDS, 0.1, (1.0,) * 12)
  kept = ("self_0", "cross_1", "mlp_1")
  assert costs.c(kept) == pytest.approx(0.45)
  for alpha in (0.2, 0.7, 0.95):
    speed, gamma = costs.best(alpha, kept)
    assert speed == pytest.approx(walltime_improvement(alpha, gamma, 0.45))
    assert speed >= walltime_improvement(alpha, np.arange(1, 13), 0.45).max() - 1e-9
    assert gamma == max(optimal_gamma(alpha, 0.45), 1)


def test_an_expensive_block_shortens_the_draft():
  cheap = LayerCosts(KINDS, 0.1, (1, 1, 1))
  dear = LayerCosts(KINDS, 0.1, (1, 9, 9))
  assert cheap.best(0.9, ())[1] == 3
  assert dear.best(0.9, ()) == (pytest.approx(1.9 / 1.1), 1)


def test_the_knapsack_orders_sublayers_by_loss_per_cost():
  losses = {"self_0": 0.02, "cross_0": 0.03, "mlp_0": 0.03, "self_1": -0.01}
  found = knapsack(losses, LayerCosts(KINDS, 0.1, (1.0,)))
  # Losses per cost: -0.1, 0.15, 0.2 and 0.6.
  order = ["self_1", "mlp_0", "self_0", "cross_0"]
  assert found == [frozenset(order[:count]) for count in range(5)]


@pytest.mark.parametrize("blocks", [(), (0.0,), (np.nan,)])
def test_invalid_costs_are_refused(blocks):
  with pytest.raises(ValueError, match="Costs must be finite numbers"):
    LayerCosts(KINDS, 0.1, blocks)
