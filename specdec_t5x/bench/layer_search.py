"""The search for sublayers to leave out: trials that are kept, a knapsack, Optuna.

Optuna is needed here alone, when a study is opened.
"""

import importlib.util
import os
from collections.abc import Callable, Collection, Mapping
from typing import Any

from specdec_t5x.analysis.layers import LayerCosts, knapsack

FILE = "layers.log"


def require_optuna() -> None:
  """Raises a ValueError that says how to install Optuna where it is missing."""
  if importlib.util.find_spec("optuna") is None:
    raise ValueError(
      "The search needs Optuna, which is not installed. Install it with "
      "pip install 'specdec_t5x[search]'."
    )


def open_study(folder: str, key: Mapping[str, Any]):
  """Returns the study of a folder, new or as it was left.

  Raises:
    ValueError: where the study that is there has another key.
  """
  import optuna
  from optuna.storages import JournalStorage
  from optuna.storages.journal import JournalFileBackend

  optuna.logging.set_verbosity(optuna.logging.WARNING)
  os.makedirs(folder, exist_ok=True)
  storage = JournalStorage(JournalFileBackend(os.path.join(folder, FILE)))
  study = optuna.create_study(
    study_name="layers", storage=storage, direction="maximize", load_if_exists=True
  )
  kept = study.user_attrs.get("key")
  if kept is None:
    study.set_user_attr("key", key)
  elif kept != key:
    other = sorted(name for name in key if kept.get(name) != key[name])
    raise ValueError(
      f"{folder} holds the trials of another search: {', '.join(other)} differ. Give "
      "another --output, or the same settings."
    )
  # A run that was killed left a trial that nobody will finish.
  for trial in study.get_trials(False, (optuna.trial.TrialState.RUNNING,)):
    study.tell(trial.number, state=optuna.trial.TrialState.FAIL)
  return study


class Search:
  """Looks for the set of sublayers without which drafting is predicted fastest.

  Args:
    study: of Optuna; what it has measured already is not measured again.
    names: of all sublayers.
    alpha: the acceptance without some of them.
    costs: of sublayers and blocks.
  """

  def __init__(
    self,
    study: Any,
    names: tuple[str, ...],
    alpha: Callable[[frozenset[str]], float],
    costs: LayerCosts,
  ):
    self.names, self.costs = names, costs
    self._study, self._alpha = study, alpha
    self._known = {
      self._skipped(trial.params): trial.user_attrs["alpha"]
      for trial in self._finished()
    }

  @property
  def measured(self) -> int:
    """How many sets were."""
    return len(self._known)

  def row(self, skip: frozenset[str]) -> dict[str, Any]:
    """Returns what is predicted without these sublayers, as a row of the table."""
    kept = [name for name in self.names if name not in skip]
    speed, gamma = self.costs.best(self._known[skip], kept)
    return {
      "count": len(skip),
      "alpha": self._known[skip],
      "c": self.costs.c(kept),
      "gamma": gamma,
      "speed": speed,
      "whole": len(self.names),
      "skip": [name for name in self.names if name in skip],
    }

  def best(self, among: Collection[frozenset[str]] | None = None) -> frozenset[str]:
    """Returns the fastest set, of all that were measured; ties by the smaller set."""
    order = lambda skip: (self.row(skip)["speed"], -len(skip), sorted(skip))
    return max(self._known if among is None else among, key=order)

  def measure(self, skip: frozenset[str]) -> float:
    """Returns the acceptance without these sublayers, as a trial of the study."""
    while skip not in self._known:
      self._study.enqueue_trial({name: name in skip for name in self.names})
      self._run()
    return self._known[skip]

  def by_knapsack(self) -> frozenset[str]:
    """Returns the best of the sets that the knapsack's order gives."""
    whole = self.measure(frozenset())
    losses = {name: whole - self.measure(frozenset({name})) for name in self.names}
    found = knapsack(losses, self.costs)
    for skip in found:
      self.measure(skip)
    return self.best(found)

  def by_optuna(self, trials: int, seed: int) -> frozenset[str]:
    """Returns the best set of all, after so many trials of Optuna's own.

    Each trial has a sampler of its own, by its number: a search that was stopped goes
    on as if it had not been.
    """
    import optuna

    own = [t for t in self._finished() if "fixed_params" not in t.system_attrs]
    for number in range(len(own), trials):
      self._study.sampler = optuna.samplers.TPESampler(
        seed=seed + number, multivariate=True, n_startup_trials=0
      )
      self._run()
    return self.best()

  def _finished(self):
    import optuna

    return self._study.get_trials(False, (optuna.trial.TrialState.COMPLETE,))

  def _skipped(self, params) -> frozenset[str]:
    return frozenset(name for name in self.names if params[name])

  def _run(self):
    """Runs the trial that waits, or the sampler's next."""
    import optuna

    choice = optuna.distributions.CategoricalDistribution((False, True))
    trial = self._study.ask(dict.fromkeys(self.names, choice))
    skip = self._skipped(trial.params)
    if skip not in self._known:
      self._known[skip] = self._alpha(skip)
    trial.set_user_attr("alpha", self._known[skip])
    self._study.tell(trial, self.row(skip)["speed"])
