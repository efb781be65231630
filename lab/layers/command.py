r"""The sublayers that a target had best leave out to draft for itself, as a gin file.

  python -m lab layers --target DIR --vocabulary FILE --inputs FILE \
    --prefix "translate English to German: " --output DIR

Acceptance is measured on the target's own outputs for the inputs, without a draw, and
what each kind of sublayer takes is timed once; from both follows the speed at the best
GAMMA. Sublayers are first left out one by one, then together, in the order of what they
lose for what they save (the knapsack); Optuna goes on from there. What is measured is
kept in cells.jsonl at once: the same command goes on where it was stopped, and --trials
may be raised. Writes layers.gin, to be added after
configs/contrib/layer_skip.gin. Needs the extra `search` (optuna).
"""

import argparse
import dataclasses
import functools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from lab.layers.agreement import Agreement
from lab.layers.costs import LayerCosts
from lab.layers.search import Search, require_optuna
from specdec_t5x.bench import jobs
from specdec_t5x.bench.cells import Cells
from specdec_t5x.bench.command import Command, at_least, fastest_as_gin
from specdec_t5x.bench.environment import machine
from specdec_t5x.bench.measured import Setting
from specdec_t5x.bench.run import PLAIN, compare
from specdec_t5x.bench.study import Decode, Study, fingerprint, pad_inputs
from specdec_t5x.bench.table import Table, listed, render
from specdec_t5x.bench.timed import each_turn, medians
from specdec_t5x.contrib.layer_skip import LayerSkip
from specdec_t5x.core.distributions import Sampling
from specdec_t5x.decoding.policy import Fixed
from specdec_t5x.network.config import NetworkConfig

_GIN = """# {count} of {whole} sublayers left out. Alpha {alpha:.3f}, a drafted token at
# {c:.2f} of a plain one: {speed:.2f} times plain decoding is predicted. Temperature
# {temperature:g}, costs {costs}, by python -m lab layers. Target:
# {folder}
#
# To be added after configs/contrib/layer_skip.gin.
SKIP = ({skip})
GAMMA = {gamma}
"""
_KEYED = ("temperature", "max_length", "gamma", "batch")


def make(args: argparse.Namespace) -> Table:
  """Measures, searches and compares."""
  require_optuna()
  at_least(args, trials=0, timed=0, gamma=1, batch=1, runs=1)
  study = jobs.load(args)
  if not getattr(study.target.network, "sublayers", ()):
    raise ValueError(
      "--target: expected a T5 or a decoder-only network, got a "
      f"{type(study.target.network).__name__}, which has no sublayers to leave out."
    )
  cells, key = Cells(args.output), _key(study, args)
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
  return render("layers", rows, words, notes=notes, package="lab", facts=facts)


def _rows(search: Search, trials: int, seed: int) -> Iterator[dict[str, Any]]:
  """Yields a row for nothing left out, the knapsack's set and Optuna's."""
  found = {
    "nothing": lambda: search.measure(frozenset()) and frozenset(),
    "knapsack": search.by_knapsack,
    "Optuna": lambda: search.by_optuna(trials, seed),
  }
  for name, find in found.items():
    row = search.row(find())
    yield {"found": name, **row, "trials": search.measured}


def _timed(study: Study, rows: Sequence[Mapping[str, Any]], args) -> list[dict]:
  """Returns the rows with what each set comes to in decoding, all in turn."""
  study = dataclasses.replace(study, inputs=pad_inputs(study.ids[: args.timed]))
  runs = {PLAIN: study.program(study.decode(args.temperature))}
  for row in rows:
    decode = skipping(study, args.temperature, row["skip"], row["gamma"])
    runs[row["found"]] = study.program(decode)
  cells = compare(runs, range(len(study.inputs)), Setting(0, args.temperature))
  found = []
  for row in rows:
    cell = cells[row["found"]]
    came = {"tokens_per_call": cell.tokens_per_call, "measured": cell.speedup}
    found.append({**row, **came, "identical": cell.equal})
  return found


def skipping(
  study: Study, temperature: float, skip: Sequence[str], gamma: int
) -> Decode:
  """Returns the drafter of gamma tokens that the written gin file configures."""
  drafter = LayerSkip(tuple(skip), gamma)
  return study.decode(temperature, None, drafter, policy=Fixed())


def _key(study, args) -> dict[str, Any]:
  """Returns everything that determines what a trial comes to."""
  return {
    "target": fingerprint(study.target.params),
    "inputs": fingerprint(list(study.inputs)),
    **{name: getattr(args, name) for name in _KEYED},
    **machine(),
  }


def _costs_of(study, args, cells: Cells, key) -> LayerCosts:
  """Returns the costs, measured where they are not kept."""
  if args.costs == "weights":
    return by_weights(study.target.network.config, args.gamma)

  def run():
    return dataclasses.asdict(
      measured(study, args.temperature, args.batch, args.gamma, args.runs)
    )

  found = cells.get({**key, "costs": args.runs, "policy": "fixed"}, run)
  return LayerCosts(**{**found, "blocks": tuple(found["blocks"])})


def by_weights(config: NetworkConfig, longest: int) -> LayerCosts:
  """Returns costs as if reading each weight took the same time, and nothing else any.

  So it nearly is where one row is decoded on a device that memory bounds. The
  keys and values of the input are computed once and not counted.
  """
  attention = config.emb_dim * config.num_heads * config.head_dim
  feed_forward = (len(config.mlp_activations) + 1) * config.emb_dim * config.mlp_dim
  weights = {"self": 4 * attention, "cross": 2 * attention, "mlp": feed_forward}
  if not hasattr(config, "num_encoder_layers"):
    del weights["cross"]
  rest = config.emb_dim * config.vocab_size
  whole = rest + config.num_decoder_layers * sum(weights.values())
  kinds = {kind: count / whole for kind, count in weights.items()}
  return LayerCosts(kinds, rest / whole, (1.0,) * longest)


def measured(
  study: Study, temperature: float, batch: int, longest: int, runs: int
) -> LayerCosts:
  """Returns costs as timed on this device, all programs in turn.

  A kind's is what drafting saves without it; a block's that of an iteration whose
  draft has no sublayer, less the draft.

  Raises:
    ValueError: where a draft does not fit, or times are lost in noise.
  """
  if study.job.max_length <= longest + 1:
    raise ValueError(
      f"Expected room for a draft of {longest} tokens and one more, got "
      f"{study.job.max_length}. Raise --max-length or lower --gamma."
    )
  names, texts = study.target.network.sublayers, study.batch(batch)
  kinds = list(dict.fromkeys(name.partition("_")[0] for name in names))
  skips = {kind: [n for n in names if n.startswith(f"{kind}_")] for kind in kinds}
  skips |= {"whole": [], "rest": names}
  of = functools.partial(skipping, study, temperature)
  loops = {PLAIN: study.decode(temperature).loop(texts)}
  for name, skip in skips.items():
    loops[name] = of(skip, longest).loop(texts, "draft")
  for gamma in range(1, longest + 1):
    loops[gamma] = of(names, gamma).loop(texts)
  return _costs(medians(each_turn(loops, runs), longest), skips, names, longest)


def _costs(seconds, skips, names: Sequence[str], longest: int) -> LayerCosts:
  plain, rest = seconds[PLAIN], seconds["rest"] / longest
  count = len(names) // (len(skips) - 2)
  saved = {kind: seconds["whole"] - seconds[kind] for kind in skips}
  kinds = {
    kind: float(np.maximum(saved[kind], 0.0)) / longest / count / plain
    for kind in skips
    if kind not in ("whole", "rest")
  }
  # What is drafted in no time at all still takes an iteration.
  blocks = [
    max(seconds[gamma] - gamma * rest, 1e-3 * plain) / plain
    for gamma in range(1, longest + 1)
  ]
  return LayerCosts(kinds, rest / plain, tuple(blocks))


COMMAND = Command(
  __doc__,
  make,
  {
    **jobs.TARGET,
    **jobs.FEW,
    "temperature": 0.0,
    "gamma": (8, "longest draft"),
    "trials": (200, "of Optuna, in all"),
    "seed": (0, "of Optuna"),
    "batch": (1, "rows that are timed"),
    "runs": (15, "of each clock"),
    "costs": (
      "measured",
      "of sublayers: timed here, or as their weights' number",
      ("measured", "weights"),
    ),
    "timed": (0, "inputs to decode with what is found, beside plain decoding"),
  },
  write=fastest_as_gin("layers.gin", _GIN, "skip"),
)
