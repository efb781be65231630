r"""The sublayers that a target had best leave out to draft for itself, as a gin file.

  python -m specdec_t5x.bench layers --target DIR --vocabulary FILE --inputs FILE \
    --prefix "translate English to German: " --output DIR

Acceptance is measured on the target's own outputs for the inputs, without a draw, and
what each kind of sublayer takes is timed once; from both follows the speed at the best
GAMMA. Sublayers are first left out one by one, then together, in the order of what
they lose for what they save (the knapsack); Optuna goes on from there. Every trial is
kept in layers.log as it is measured: the same command goes on where it was stopped,
and --trials may be raised. Writes layers.gin, to be added after
configs/drafters/layer_skip.gin, and layers.json, layers.csv and layers.md. Needs the
extra `search` (optuna). Leave all cores to it.
"""

import argparse
import dataclasses
import importlib.util
import os
from collections.abc import Callable, Mapping
from typing import Any

import jax

from specdec_t5x import api
from specdec_t5x.analysis.layers import LayerCosts, knapsack
from specdec_t5x.bench import flags, inputs, layer_costs
from specdec_t5x.bench.agreement import Agreement
from specdec_t5x.bench.command import Command
from specdec_t5x.bench.environment import environment
from specdec_t5x.bench.study import fingerprint, pad_inputs
from specdec_t5x.bench.table import Column, Table, listed
from specdec_t5x.core.checks import is_whole
from specdec_t5x.core.distributions import Sampling

FILE = "layers.log"
_GIN = """# {count} of {whole} sublayers left out. Alpha {alpha:.3f}, a drafted token at
# {c:.2f} of a plain one: {speed:.2f} times plain decoding is predicted. Temperature
# {temperature:g}, costs {costs}, by python -m specdec_t5x.bench layers. Target:
# {target}
#
# To be added after configs/drafters/layer_skip.gin.
SKIP = ({names})
GAMMA = {gamma}
"""
_COLUMNS = (
  Column("found", "left out"),
  Column("count", "sublayers"),
  Column("alpha", "alpha", 3),
  Column("c", "c"),
  Column("gamma", "gamma"),
  Column("speed", "predicted speed-up", 3),
  Column("trials", "sets measured"),
)


def add_flags(parser: argparse.ArgumentParser) -> None:
  """Adds the command's flags."""
  add = parser.add_argument
  add("--target", metavar="DIR", required=True, help="checkpoint")
  flags.add_texts(parser, required=True)
  add("--max-length", type=int, default=64, help="room for an output (%(default)s)")
  add("--temperature", type=float, default=0.0, help="(%(default)s)")
  add("--gamma", type=int, default=8, help="longest draft (%(default)s)")
  add("--trials", type=int, default=200, help="of Optuna, in all (%(default)s)")
  add("--seed", type=int, default=0, help="of Optuna (%(default)s)")
  add("--batch", type=int, default=1, help="rows that are timed (%(default)s)")
  add("--runs", type=int, default=15, help="of each clock (%(default)s)")
  add(
    "--costs",
    choices=("measured", "weights"),
    default="measured",
    help="of sublayers: timed here, or as their weights' number (%(default)s)",
  )
  flags.add_output(parser, None)


def make(args: argparse.Namespace) -> Table:
  """Measures, searches and compares."""
  require_optuna()
  for name, least in (("trials", 0), ("gamma", 1), ("batch", 1), ("runs", 1)):
    if not is_whole(getattr(args, name), least):
      raise ValueError(f"--{name} must be at least {least}, got {getattr(args, name)}.")
  target = api.load_model(args.target)
  if not getattr(target.network, "sublayers", ()):
    raise ValueError(
      "--target: expected a T5 or a decoder-only network, got a "
      f"{type(target.network).__name__}, which has no sublayers to leave out."
    )
  ids, eos_id = inputs.lines(args)()
  sampling = Sampling(args.temperature)
  study = open_study(args.output, _key(target, ids, args))
  costs = _kept_costs(study, target, ids, sampling, args)
  known = sampling, eos_id, args.max_length, args.gamma
  agreement = Agreement(target, ids, *known)
  search = Search(study, agreement.names, agreement, costs)
  rows = list(_rows(search, args.trials, args.seed))
  notes = (
    "Alpha: the share of the target's tokens that what is left has too (at T = 1 the "
    "mean of sum min(p, q)); c: a drafted token over a plain one; the speed-up follows "
    "from these and from what blocks take. The knapsack leaves out what loses least "
    "for what it saves; Optuna begins with all that it measured.",
    listed({"costs": args.costs, **costs.kinds, "rest": costs.rest}),
    listed(environment()),
  )
  title = f"Sublayers left out, {len(ids)} inputs, {sampling}"
  facts = {"costs": dataclasses.asdict(costs)}
  return Table("layers", title, _COLUMNS, rows, notes, vars(args), facts)


def require_optuna() -> None:
  """Raises a ValueError that says how to install Optuna where it is missing."""
  if importlib.util.find_spec("optuna") is None:
    raise ValueError(
      "The search needs Optuna, which is not installed. Install it with "
      "pip install 'specdec_t5x[search]'."
    )


def open_study(folder: str, key: Mapping[str, Any]):
  """Returns the study of a folder, new or as it was left.

  Args:
    folder: where `FILE` is, or will be.
    key: everything that determines what a trial comes to.

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

  def best(self, among: Any = None) -> frozenset[str]:
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


def _rows(search: Search, trials: int, seed: int):
  """Yields a row for nothing left out, the knapsack's set and Optuna's."""
  found = {
    "nothing": lambda: search.measure(frozenset()) and frozenset(),
    "knapsack": search.by_knapsack,
    "Optuna": lambda: search.by_optuna(trials, seed),
  }
  for name, find in found.items():
    row = search.row(find())
    yield {"found": name, **row, "trials": search.measured}


def _key(target, ids, args) -> dict[str, Any]:
  """Returns everything that determines what a trial comes to."""
  return {
    "target": fingerprint(target.params),
    "inputs": fingerprint(list(pad_inputs(ids))),
    "temperature": args.temperature,
    "max_length": args.max_length,
    "gamma": args.gamma,
    "costs": args.costs,
    "batch": args.batch,
    "seed": args.seed,
    "device": jax.devices()[0].device_kind if args.costs == "measured" else None,
  }


def _kept_costs(study, target, ids, sampling, args) -> LayerCosts:
  """Returns the study's costs; measures them where it has none yet."""
  kept = study.user_attrs.get("costs")
  if kept is None:
    if args.costs == "weights":
      costs = layer_costs.by_weights(target.network.config, args.gamma)
    else:
      texts = next(iter(api.padded_batches(ids[: args.batch], args.batch)))[1]
      known = sampling, args.max_length, args.gamma, args.runs
      costs = layer_costs.measured(target, texts, *known)
    kept = dataclasses.asdict(costs)
    study.set_user_attr("costs", kept)
  return LayerCosts(**{**kept, "blocks": tuple(kept["blocks"])})


def write(table: Table, args: argparse.Namespace) -> list[str]:
  """Writes the table, and the best set's gin file."""
  path = os.path.join(args.output, "layers.gin")
  best = max(table.rows, key=lambda row: row["speed"])
  with open(path, "w", encoding="utf-8") as file:
    file.write(gin_of(best, args))
  return [path, *table.write(args.output)]


def gin_of(best: Mapping[str, Any], args: argparse.Namespace) -> str:
  """Returns the gin file of a row."""
  names = "".join(f"{name!r}, " for name in best["skip"]).rstrip()
  return _GIN.format(**{**vars(args), **best, "names": names})


COMMAND = Command(__doc__, make, add_flags, write)
