"""Which sublayers a target had best leave out when it drafts for itself.

Predicted speed: tokens over time, E(alpha, gamma) / (gamma c + s(gamma)), with
E = 1 + alpha + ... + alpha^gamma, alpha the measured acceptance of what is left, c the
cost of one drafted token, s that of an iteration beside its drafts, both in units of a
plain token: theorem 3.8 of Leviathan et al. where s = 1.
"""

import dataclasses
from collections.abc import Collection, Mapping, Sequence

from specdec_t5x.analysis.theory import expected_tokens
from specdec_t5x.core.checks import is_finite


@dataclasses.dataclass(frozen=True)
class LayerCosts:
  """What drafting takes, in units of a plain token.

  Attributes:
    kinds: of a drafted token in one sublayer, by kind: 'self', 'cross', 'mlp'.
    rest: of a drafted token beside its sublayers: its distribution and its draw.
    blocks: s, of an iteration beside its drafts, at gamma = 1, 2, ..
  """

  kinds: Mapping[str, float]
  rest: float
  blocks: Sequence[float]

  def __post_init__(self):
    numbers = [*self.kinds.values(), self.rest, *self.blocks]
    if not self.blocks or not all(map(is_finite, numbers)) or min(self.blocks) <= 0:
      raise ValueError(
        "Costs must be finite numbers of at least 0, and those of blocks above 0, got "
        f"{self}."
      )

  def of(self, name: str) -> float:
    """Returns the time of a drafted token in a sublayer."""
    return self.kinds[name.partition("_")[0]]

  def c(self, kept: Collection[str]) -> float:
    """Returns the time of a drafted token in these sublayers and outside of them."""
    return self.rest + sum(map(self.of, kept))

  def best(self, alpha: float, kept: Collection[str]) -> tuple[float, int]:
    """Returns the predicted speed at the best gamma, and that gamma.

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
  """Returns sets of sublayers to skip, from none to all, each with a sublayer more.

  The least acceptance lost for the time saved comes first: Dantzig's greedy solution of
  the knapsack problem, which takes losses to add up.

  Args:
    losses: of acceptance, of each sublayer left out alone, by its name.
    costs: of the sublayers.
  """

  def per_cost(name):
    return losses[name] / max(costs.of(name), 1e-12)

  order = sorted(losses, key=per_cost)
  return [frozenset(order[:count]) for count in range(len(order) + 1)]
