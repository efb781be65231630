"""Finds the best sublayers to skip if a target drafts for itself; writes a gin file."""

import argparse
import dataclasses
import functools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from benchmarks import jobs
from benchmarks.cells import Cells
from benchmarks.command import Command
from benchmarks.environment import machine
from benchmarks.measure import PLAIN, Run, Way, measure
from benchmarks.study import Decode, Study, fingerprint, pad_inputs
from benchmarks.table import Table, listed, put, render
from benchmarks.timed import alternate, medians, repeated, slopes
from lab.layers.agreement import Agreement
from lab.layers.costs import LayerCosts
from lab.layers.search import Search, require_optuna
from specdec_t5x import api
from specdec_t5x.core.distributions import Sampling
from specdec_t5x.decoding.policies import Fixed
from specdec_t5x.drafters.of_target import LayerSkip
from specdec_t5x.network.config import NetworkConfig

_GIN = """# Skips {count} of {whole} sublayers. Alpha {alpha:.3f}, c {c:.2f}, predicted
# speed {speed:.2f} times plain decoding. Temperature {temperature:g}, costs {costs}, by
# python -m lab layers. Target: {folder}
#
# Add this file after configs/drafters/layer_skip.gin.
SKIP = ({skip})
GAMMA = {gamma}
"""
_KEYED = ("temperature", "max_length", "gamma", "batch")


def make(args: argparse.Namespace) -> Table:
  """Measures costs and alpha, searches, and times the results."""
  require_optuna()
  study = jobs.load(args)
  if not getattr(study.target.network, "sublayers", ()):
    raise ValueError(
      "--target: expected a T5 or a decoder-only network, got a "
      f"{type(study.target.network).__name__}, without sublayers to skip."
    )
  cells = Cells(args.output)
  key = _key(study, args)
  costs = _costs_of(study, args, cells, key)
  agreement = Agreement(study, args.temperature, args.gamma)

  def alpha(skip):
    def measured():
      return {"alpha": agreement(skip)}

    return cells.get({**key, "skip": sorted(skip)}, measured)["alpha"]

  search = Search(agreement.names, alpha, costs)
  rows = list(_rows(search, args.trials, args.seed))
  if args.timed:
    rows = _timed(study, rows, args)
  notes = [listed({"costs": args.costs, **costs.kinds, "rest": costs.rest})]
  words = {"inputs": len(study.inputs), "sampling": Sampling(args.temperature)}
  facts = {"costs": dataclasses.asdict(costs), "folder": study.job.target}
  best = max(rows, key=lambda row: row["speed"])
  skip = "".join(f"{name!r}, " for name in best["skip"]).rstrip()
  gin = _GIN.format_map({**facts, **vars(args), **best, "skip": skip})
  put(args.output, "layers.gin", gin)
  return render("layers", rows, words, notes=notes, package="lab", facts=facts)


def _rows(search: Search, trials: int, seed: int) -> Iterator[dict[str, Any]]:
  """Yields the rows of the full target, the knapsack and Optuna."""
  searches = {
    "nothing": lambda: search.measure(frozenset()) and frozenset(),
    "knapsack": search.by_knapsack,
    "Optuna": lambda: search.by_optuna(trials, seed),
  }
  for name, find in searches.items():
    row = search.row(find())
    yield {"found": name, **row, "trials": search.measured}


def _timed(study: Study, rows: Sequence[Mapping[str, Any]], args) -> list[dict]:
  """Returns the rows with speed and equality, measured in turn with plain decoding."""
  study = dataclasses.replace(study, inputs=pad_inputs(study.ids[: args.timed]))
  ways = {PLAIN: Way(study.grouped(study.decode(args.temperature), 1))}
  for row in rows:
    decode = skipping(study, args.temperature, row["skip"], row["gamma"])
    ways[row["found"]] = Way(study.grouped(decode, 1))
  run = Run(lambda *_: ways, study.groups, [args.temperature])
  cells = {row.key: row.cell for row in measure(run)}
  timed_rows = []
  for row in rows:
    cell = cells[row["found"]]
    results = {"tokens_per_call": cell.tokens_per_call, "measured": cell.speedup}
    timed_rows.append({**row, **results, "identical": cell.row()["identical"]})
  return timed_rows


def skipping(
  study: Study, temperature: float, skip: Sequence[str], gamma: int
) -> Decode:
  """Returns decoding with the drafter of gamma tokens that layers.gin configures."""
  drafter = LayerSkip(tuple(skip), gamma)
  return study.decode(temperature, None, drafter, policy=Fixed())


def _key(study, args) -> dict[str, Any]:
  """Returns everything that determines the result of a trial."""
  return {
    "target": fingerprint(study.target.params),
    "inputs": fingerprint(list(study.inputs)),
    **{name: getattr(args, name) for name in _KEYED},
    **machine(),
  }


def _costs_of(study, args, cells: Cells, key) -> LayerCosts:
  """Returns the costs, measured unless the cells have them."""
  if args.costs == "weights":
    return by_weights(study.target.network.config, args.gamma)

  def run():
    return dataclasses.asdict(
      measured(study, args.temperature, args.batch, args.gamma, args.runs)
    )

  costs = cells.get({**key, "costs": args.runs, "policy": "fixed"}, run)
  return LayerCosts(**{**costs, "blocks": tuple(costs["blocks"])})


def by_weights(config: NetworkConfig, longest: int) -> LayerCosts:
  """Returns costs proportional to the number of weights.

  The approximation is good for a single batch row on a memory-bound device. The keys
  and values of the input are computed once and not counted.
  """
  attention = config.emb_dim * config.num_heads * config.head_dim
  feed_forward = (len(config.mlp_activations) + 1) * config.emb_dim * config.mlp_dim
  weights = {"self": 4 * attention, "cross": 2 * attention, "mlp": feed_forward}
  if not hasattr(config, "num_encoder_layers"):
    del weights["cross"]
  rest = config.emb_dim * config.vocab_size
  total = rest + config.num_decoder_layers * sum(weights.values())
  kinds = {kind: count / total for kind, count in weights.items()}
  return LayerCosts(kinds, rest / total, (1.0,) * longest)


def measured(
  study: Study, temperature: float, batch: int, longest: int, runs: int
) -> LayerCosts:
  """Measures the costs on this device, with the programs in turn.

  The cost of a kind of sublayer is the time that drafting saves without that kind. The
  cost of a block is the time of an iteration with a draft without sublayers, minus the
  time of the draft.

  Raises:
    ValueError: if the longest draft exceeds --max-length, or times are lost in noise.
  """
  if study.job.max_length <= longest + 1:
    raise ValueError(
      f"Expected --max-length > --gamma + 1 = {longest + 1}, got "
      f"{study.job.max_length}. Raise --max-length or lower --gamma."
    )
  names = study.target.network.sublayers
  _, texts, _ = next(iter(api.padded_batches(study.ids[:batch], batch)))
  kinds = list(dict.fromkeys(name.partition("_")[0] for name in names))
  skips = {kind: [n for n in names if n.startswith(f"{kind}_")] for kind in kinds}
  skips |= {"whole": [], "rest": names}
  decode = functools.partial(skipping, study, temperature)
  loops = {PLAIN: study.decode(temperature).loop(texts)}
  for name, skip in skips.items():
    loops[name] = decode(skip, longest).loop(texts)
    loops[f"{name}, twice"] = decode(skip, longest).loop(texts, redrafts=True)
  for gamma in range(1, longest + 1):
    loops[gamma] = decode(names, gamma).loop(texts)
  turns = slopes(alternate(repeated(loops), range(runs)))
  # An iteration that drafts twice takes a draft more.
  drafts = {name: turns[f"{name}, twice"] - turns.pop(name) for name in skips}
  return _costs(medians(turns | drafts), skips, names, longest)


def _costs(seconds, skips, names: Sequence[str], longest: int) -> LayerCosts:
  plain = seconds[PLAIN]
  rest = seconds["rest"] / longest
  count = len(names) // (len(skips) - 2)
  saved = {kind: seconds["whole"] - seconds[kind] for kind in skips}
  kinds = {
    kind: float(np.maximum(saved[kind], 0.0)) / longest / count / plain
    for kind in skips
    if kind not in ("whole", "rest")
  }
  # Noise must not make the cost of a block zero or negative.
  blocks = [
    max(seconds[gamma] - gamma * rest, 1e-3 * plain) / plain
    for gamma in range(1, longest + 1)
  ]
  return LayerCosts(kinds, rest / plain, tuple(blocks))


COMMAND = Command("layers", make, package="lab")
