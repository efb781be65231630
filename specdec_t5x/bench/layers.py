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
import os
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import jax

from specdec_t5x import api
from specdec_t5x.analysis.layers import LayerCosts
from specdec_t5x.bench import flags, inputs, layer_costs, programs
from specdec_t5x.bench.agreement import Agreement
from specdec_t5x.bench.command import Command
from specdec_t5x.bench.environment import environment
from specdec_t5x.bench.layer_search import Search, open_study, require_optuna
from specdec_t5x.bench.measured import Measured, Setting
from specdec_t5x.bench.study import fingerprint, pad_inputs
from specdec_t5x.bench.table import Column, Table, listed
from specdec_t5x.bench.walltime import alternate
from specdec_t5x.core.checks import is_whole
from specdec_t5x.core.distributions import Sampling
from specdec_t5x.drafters.layer_skip import LayerSkip
from specdec_t5x.drafters.policies import Whole

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
  Column("tokens_per_call", "tokens a call"),
  Column("measured", "speed-up"),
  Column("identical", "equal outputs"),
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
  add(
    "--timed",
    type=int,
    default=0,
    help="inputs to decode with what is found, beside "
    "plain decoding, one at a time (%(default)s)",
  )
  flags.add_output(parser, None)


def make(args: argparse.Namespace) -> Table:
  """Measures, searches and compares."""
  require_optuna()
  for name, least in (
    ("trials", 0),
    ("timed", 0),
    ("gamma", 1),
    ("batch", 1),
    ("runs", 1),
  ):
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
  if args.timed:
    rows = _timed(target, ids[: args.timed], eos_id, sampling, rows, args.max_length)
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


def _timed(
  target: api.Model,
  ids: Sequence[Sequence[int]],
  eos_id: int,
  sampling: Sampling,
  rows: Sequence[Mapping[str, Any]],
  room: int,
) -> list[dict[str, Any]]:
  """Returns the rows with what each set comes to in decoding, all in turn."""
  texts, keys = pad_inputs(ids), programs.input_keys(len(ids))

  def program(*drafter):
    parts = programs.together(target, None, *drafter)
    run = programs.decoding(*parts, sampling, room, eos_id)
    return lambda number: run(texts[number], keys[number])

  runs = {"plain": program()}
  for row in rows:
    drafter = LayerSkip(row["skip"], row["gamma"], Whole())
    runs[row["found"]] = program(drafter)
  timed = alternate(runs, range(len(texts)))
  found = []
  for row in rows:
    setting = Setting(row["gamma"], sampling.temperature)
    cell = Measured.timed(setting, timed[row["found"]], timed["plain"])
    same = cell.identical
    cells = {
      "tokens_per_call": cell.tokens_per_call,
      "measured": cell.speedup,
      "identical": "sampled" if same is None else f"{same}/{cell.inputs}",
    }
    found.append({**row, **cells})
  return found


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
