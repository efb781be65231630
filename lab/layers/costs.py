"""The predicted speed of a target that drafts for itself without some sublayers.

The speed is tokens over time, E(alpha, gamma) / (gamma c + s(gamma)). E is 1 + alpha +
... + alpha^gamma, alpha the measured acceptance rate of the draft, c the cost of a
drafted token, and s the cost of an iteration without the draft. The units of c and s
are the time of a plain token. With s = 1 the formula is theorem 3.8 of Leviathan et al.
"""

import dataclasses
from collections.abc import Collection, Mapping, Sequence

from specdec_t5x.core.knobs import is_finite
from specdec_t5x.core.theory import expected_tokens


@dataclasses.dataclass(frozen=True)
class LayerCosts:
  """The costs of drafting, in units of a plain token."""

  # Time of a drafted token in a sublayer, by kind: 'self', 'cross', 'mlp'.
  kinds: Mapping[str, float]
  # Time of a drafted token outside of sublayers: distribution and sampling.
  rest: float
  # s, the time of an iteration without the draft, at gamma = 1, 2, ..
  blocks: Sequence[float]

  def __post_init__(self):
    numbers = [*self.kinds.values(), self.rest, *self.blocks]
    if not self.blocks or not all(map(is_finite, numbers)) or min(self.blocks) <= 0:
      raise ValueError(
        "Costs must be finite numbers of at least 0, and the costs of blocks above 0, "
        f"got {self}."
      )

  def of(self, name: str) -> float:
    """Returns the time of a drafted token in a sublayer."""
    return self.kinds[name.partition("_")[0]]

  def c(self, kept: Collection[str]) -> float:
    """Returns the time of a drafted token with the kept sublayers."""
    return self.rest + sum(map(self.of, kept))

  def best(self, alpha: float, kept: Collection[str]) -> tuple[float, int]:
    """Returns the predicted speed at the best gamma, and the best gamma.

    >>> LayerCosts({"mlp": 0.2}, 0.1, (1.0, 1.0, 1.0)).best(0.8, ("mlp_0", "mlp_1"))
    (1.22, 2)
    """
    c = self.c(kept)
    speeds = {
      gamma: float(expected_tokens(alpha, gamma)) / (gamma * c + block)
      for gamma, block in enumerate(self.blocks, 1)
    }
    gamma = max(speeds, key=speeds.get)
    return round(speeds[gamma], 12), gamma


def knapsack(losses: Mapping[str, float], costs: LayerCosts) -> list[frozenset[str]]:
  """Returns growing sets of sublayers to skip, from no sublayer to every sublayer.

  The sublayer with the least acceptance lost per time saved comes first: Dantzig's
  greedy solution of the knapsack problem, which assumes that losses add up.

  Args:
    losses: acceptance lost without a sublayer, by name of the sublayer.
    costs: costs of the sublayers.
  """

  def per_cost(name):
    return losses[name] / max(costs.of(name), 1e-12)

  order = sorted(losses, key=per_cost)
  return [frozenset(order[:count]) for count in range(len(order) + 1)]
