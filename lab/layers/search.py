"""The search for sublayers to skip: a knapsack, then Optuna.

No other module needs Optuna.
"""

import importlib.util
from collections.abc import Callable, Collection
from typing import Any

from lab.layers.costs import LayerCosts, knapsack


def require_optuna() -> None:
  """Raises a ValueError with the install command if Optuna is missing."""
  if importlib.util.find_spec("optuna") is None:
    raise ValueError(
      "The search needs Optuna, which is not installed. Install it with "
      "pip install --editable '.[search]', at the root of the clone."
    )


class Search:
  """A search for the sublayers to skip with the best predicted speed.

  The search is deterministic: with acceptance rates in `benchmarks.cells`, a stopped
  search continues as if never interrupted.

  Args:
    names: names of the sublayers.
    alpha: acceptance rate by set of skipped sublayers.
    costs: costs of sublayers and blocks.
  """

  def __init__(
    self,
    names: tuple[str, ...],
    alpha: Callable[[frozenset[str]], float],
    costs: LayerCosts,
  ):
    import optuna

    optuna.logging.set_verbosity(optuna.logging.WARNING)
    self.names = names
    self.costs = costs
    self._alpha = alpha
    self._alphas = {}
    self._study = optuna.create_study(direction="maximize")
    choice = optuna.distributions.CategoricalDistribution((False, True))
    self._choices = dict.fromkeys(names, choice)

  @property
  def measured(self) -> int:
    """The number of measured sets."""
    return len(self._alphas)

  def row(self, skip: frozenset[str]) -> dict[str, Any]:
    """Returns the prediction without the skipped sublayers as a row of the table."""
    kept = [name for name in self.names if name not in skip]
    speed, gamma = self.costs.best(self._alphas[skip], kept)
    return {
      "count": len(skip),
      "alpha": self._alphas[skip],
      "c": self.costs.c(kept),
      "gamma": gamma,
      "speed": speed,
      "whole": len(self.names),
      "skip": [name for name in self.names if name in skip],
    }

  def best(self, among: Collection[frozenset[str]] | None = None) -> frozenset[str]:
    """Returns the fastest of the measured sets; the smaller set wins a tie."""

    def order(skip):
      return (self.row(skip)["speed"], -len(skip), sorted(skip))

    return max(self._alphas if among is None else among, key=order)

  def measure(self, skip: frozenset[str]) -> float:
    """Returns the acceptance rate without the sublayers, and reports it to Optuna."""
    if skip not in self._alphas:
      self._study.enqueue_trial({name: name in skip for name in self.names})
      self._run()
    return self._alphas[skip]

  def by_knapsack(self) -> frozenset[str]:
    """Returns the best set in the order of the knapsack."""
    full = self.measure(frozenset())
    losses = {name: full - self.measure(frozenset({name})) for name in self.names}
    sets = knapsack(losses, self.costs)
    for skip in sets:
      self.measure(skip)
    return self.best(sets)

  def by_optuna(self, trials: int, seed: int) -> frozenset[str]:
    """Returns the best measured set after a number of Optuna's trials.

    Every trial has a sampler with a seed of its own.
    """
    import optuna

    for number in range(trials):
      self._study.sampler = optuna.samplers.TPESampler(
        seed=seed + number, multivariate=True, n_startup_trials=0
      )
      self._run()
    return self.best()

  def _run(self):
    """Runs the queued trial, or the next trial of the sampler."""
    trial = self._study.ask(self._choices)
    skip = frozenset(name for name in self.names if trial.params[name])
    if skip not in self._alphas:
      self._alphas[skip] = self._alpha(skip)
    self._study.tell(trial, self.row(skip)["speed"])
