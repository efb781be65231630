r"""Every way to speculate for one target, side by side: its needs and its gains.

  python -m specdec_t5x.bench methods --output DIR          # the demo pair, all drafts
  python -m specdec_t5x.bench methods --target DIR --draft small=DIR --draft hydra=DIR \
    --draft copy --vocabulary FILE --inputs FILE --also news=FILE \
    --prefix "translate English to German: " --output DIR

Decodes every input at batch 1 by each way, all in turn in one process: each draft in
each of its shapes, the first draft model under every rule and policy, and in a process
of its own; at temperature 0 also the peers that are installed (Hugging Face,
CTranslate2, upstream T5X), with the same weights. Inputs may be of several domains.
Writes methods.json, methods.csv and methods.md, and with --chart a figure. Leave all
cores to it.
"""

import argparse
import contextlib
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np

from specdec_t5x.bench import domains, flags, jobs, parts, programs
from specdec_t5x.bench.command import Command, write_table
from specdec_t5x.bench.environment import environment
from specdec_t5x.bench.measured import Measured, Setting
from specdec_t5x.bench.paper import plotting
from specdec_t5x.bench.parts import NEVER
from specdec_t5x.bench.peers import comparison
from specdec_t5x.bench.peers import programs as peers
from specdec_t5x.bench.programs import together
from specdec_t5x.bench.study import Study
from specdec_t5x.bench.table import Column, Table, listed
from specdec_t5x.bench.walltime import Program, Timed, alternate, median_ratio
from specdec_t5x.bench.ways import Knobs, Way, first_model, ways
from specdec_t5x.core.distributions import Sampling
from specdec_t5x.drafters.draft_model import DEFAULT_GAMMA
from specdec_t5x.link import process
from specdec_t5x.link.client import Remote
from specdec_t5x.network.functional import is_decoder_only

_COLUMNS = (
  Column("temperature", "T"),
  Column("domain", "inputs"),
  Column("draft", "draft"),
  Column("shape", "shape"),
  Column("rule", "rule"),
  Column("guarantee", "guarantee"),
  Column("nodes", "nodes", missing="-"),
  Column("parameters", "parameters"),
  Column("training", "training"),
  Column("tokens_per_call", "tokens a call", missing="-"),
  Column("c", "c", 3, missing="-"),
  Column("speed", "speed-up"),
  Column("in_all", "all inputs"),
  Column("identical", "equal outputs"),
)
_NOTES = (
  "Tokens a call of the target [95% interval]; speed-up: plain decoding's seconds a "
  "token over ours, input included, median input [quartiles]; and of all inputs "
  "together. Parameters: what a way adds to the target's. Training: what had to be "
  "learned for it. c: seconds of drafting over those of as many calls of the target, "
  "on one token each, as the draft is deep; measured once for each shape. Siblings: "
  "the likeliest tokens at temperature 0, else drawn without replacement; candidates: "
  "independent; a pruned tree's nodes are certain. At temperature 0 exact rules are "
  "greedy verification."
)
_PLAIN = "plain"
Key = tuple[str, str]  # A draft's name, and its shape.
Costs = dict[Key, float | None]
_CHARTED = 8  # Inches a panel is wide.


def add_flags(parser: argparse.ArgumentParser) -> None:
  """Adds the command's flags."""
  flags.add_pairs(parser)
  parser.set_defaults(num_tokens=None, runs=None, num_inputs=25)
  parser.set_defaults(with_tables=True, with_heads=True)
  flags.add_temperatures(parser)
  domains.add_flags(parser)
  add = parser.add_argument
  add("--gamma", type=int, default=DEFAULT_GAMMA, help="of draft models (%(default)s)")
  sizes = [8, 24]
  add("--sizes", type=int, nargs="+", default=sizes, help="of trees (%(default)s)")
  about = "sublayers, as self_2, that the target leaves out to draft for itself"
  add("--skip", nargs="+", default=[], metavar="NAME", help=about)
  add("--no-peers", action="store_true", help="our own programs alone")
  add("--no-rules", action="store_true", help="each shape under one exact rule")
  add("--chart", action="store_true", help="draw speed-ups too; needs matplotlib")
  flags.add_output(parser, None)


def make(args: argparse.Namespace) -> Table:
  """Decodes every input by every way."""
  if args.chart:
    plotting.require_matplotlib()
  study = jobs.from_flags(args)[0].load()
  study, labels = domains.with_domains(study, args)
  costs: Costs = {}
  with _elsewhere(study, args) as address:
    knobs = Knobs(args.gamma, args.sizes, args.skip, not args.no_rules, address)
    rows = [
      row
      for t in args.temperatures
      for row in _rows(study, labels, Sampling(t), knobs, args, costs)
    ]
    lost = Remote(address).counts()["lost"] if address else 0
  inputs = {name: labels.count(name) for name in dict.fromkeys(labels)}
  facts = {"inputs": inputs, "batch": 1, "gamma": args.gamma}
  if lost:  # Those rows are of a draft that was away for a while.
    facts["drafts lost on their way from the other process"] = lost
  title = f"Ways to speculate, {study.job.task}"
  notes = (_NOTES, listed(facts), listed(environment()))
  return Table("methods", title, _COLUMNS, rows, notes, vars(args))


def _elsewhere(study: Study, args) -> contextlib.AbstractContextManager[str]:
  """Has the first draft model answer in another process; its address, or none."""
  draft = None if args.no_rules else first_model(study)
  if draft is None:
    return contextlib.nullcontext("")
  return process.drafting(draft.source, study.job.dtype)


def _rows(
  study: Study, labels: Sequence[str], sampling: Sampling, knobs: Knobs, args, costs
) -> Iterator[dict[str, Any]]:
  """Yields a row for each way and domain, all timed in turn; adds to `costs`."""
  temperature = sampling.temperature
  found = ways(study, sampling, knobs)
  decoders = [together(study.target, x.models, x.drafter, x.rule) for x in found]
  runs: dict[Any, Program] = {_PLAIN: study.plain(study.target, temperature)}
  for number, (decoder, params) in enumerate(decoders):
    runs[number] = study.program(decoder, params, temperature)
  others = {} if temperature or args.no_peers else _peers(study, args)
  print(f"T={temperature:g}: {len(found)} ways, {len(others)} peers", file=sys.stderr)
  timed = alternate(runs | others, range(len(study.inputs)))
  # Once for each shape: neither rules nor temperatures draft at another cost.
  new = {
    way.key: decoder
    for way, decoder in zip(found, decoders, strict=True)
    if way.key not in costs
  }
  costs |= drafting_costs(study, new, sampling)
  for domain in dict.fromkeys(labels):
    known = {"temperature": f"{temperature:g}", "domain": domain}
    where = [number for number, label in enumerate(labels) if label == domain]
    part = {name: _of(one, where) for name, one in timed.items()}
    for number, way in enumerate(found):
      row = _row(way, part[number], part[_PLAIN], sampling)
      yield known | row | {"c": costs[way.key]}
    for name in others:
      yield known | _peer_row(name, part[name], part[_PLAIN], study.eos_id)


def _of(timed: Timed, where: Sequence[int]) -> Timed:
  return Timed(timed.seconds[where], tuple(timed.results[number] for number in where))


def _row(way: Way, ours: Timed, plain: Timed, sampling: Sampling) -> dict[str, Any]:
  cell = Measured.timed(Setting(1, sampling.temperature), ours, plain)
  rule, same = way.judge(sampling), cell.identical
  return {
    "draft": way.draft,
    "shape": way.shape,
    "rule": type(rule).__name__.lower(),
    "guarantee": rule.guarantee.name,
    "nodes": way.drafter.tree.size,
    "parameters": way.parameters,
    "training": way.training,
    "tokens_per_call": cell.tokens_per_call,
    "speed": cell.speedup,
    "in_all": cell.speedup_in_all,
    "identical": "sampled" if same is None else f"{same}/{cell.inputs}",
  }


def drafting_costs(
  study: Study,
  decoders: Mapping[Key, tuple[Any, Any]],
  sampling: Sampling,
  runs: int = 5,
) -> Costs:
  """Returns c of each decoder: a drafted level's seconds over a call of the target's.

  None where it is lost in noise.
  """
  room, timed, first = study.job.max_length, {}, next(iter(decoders), None)
  if first is None:
    return {}
  for key, (decoder, params) in decoders.items():
    prepare = lambda *args, decoder=decoder: decoder.prepare(
      *args, sampling, room, NEVER
    )
    found = parts.part_programs(prepare)
    given = params, study.inputs[0], *programs.input_keys(1)
    for name in ("draft", "token") if key == first else ("draft",):
      for count in (2, 10):
        run = found[name]
        timed[name, key, count] = lambda _, run=run, count=count, given=given: run(
          jnp.int32(count), *given
        )
  seconds = {n: x.seconds for n, x in alternate(timed, range(runs)).items()}
  slope = lambda *key: float(np.median(seconds[*key, 10] - seconds[*key, 2])) / 8
  token = slope("token", first)
  depths = {key: decoder.drafter.tree.depth for key, (decoder, _) in decoders.items()}
  return {
    key: max(slope("draft", key), 0.0) / depth / token if token > 0 else None
    for key, depth in depths.items()
  }


def _peers(study: Study, args) -> dict[str, Program]:
  """Returns what else decodes greedily with these weights, from an input's number."""
  draft = first_model(study)
  if draft is None or is_decoder_only(study.target.network):
    return {}
  work = peers.Workload(
    target=study.target,
    draft=draft.model,
    inputs=[np.asarray(row) for row in study.inputs],
    gamma=args.gamma,
    max_length=study.job.max_length,
    eos_id=study.eos_id,
  )
  items, (present, _) = peers.items(work), peers.programs(work)
  return {
    name: lambda number, run=run: run(items[number])
    for name, run in present.items()
    if name not in (peers.OURS, peers.BASELINE)
  }


def _peer_row(name: str, theirs: Timed, plain: Timed, eos_id: int) -> dict[str, Any]:
  outputs = [
    [comparison.until_end(result, eos_id) for result in timed.results]
    for timed in (plain, theirs)
  ]
  lengths = [np.array([len(output) for output in found]) for found in outputs]
  same = sum(ours == theirs for ours, theirs in zip(*outputs, strict=True))
  pace = [
    t.seconds.sum() / n.sum() for t, n in zip((plain, theirs), lengths, strict=True)
  ]
  draws = peers.HF_GAMMA, peers.HF_DEFAULT, peers.HF_NO_MASK
  return {
    "draft": name,
    "shape": "peer",
    "rule": "greedy",
    "guarantee": "LOSSY" if name == peers.CT2["int8"] else "GREEDY_EXACT",
    "parameters": "the draft's" if name in draws else "0.00M",
    "training": "a draft model" if name in draws else "none",
    "speed": median_ratio(plain.seconds / lengths[0], theirs.seconds / lengths[1]),
    "in_all": float(pace[0] / pace[1]),
    "identical": f"{same}/{len(outputs[0])}",
  }


def write(table: Table, args: argparse.Namespace) -> list[str]:
  """Writes the table and, if asked, the figure: speed-ups, a panel a temperature."""
  paths = write_table(table, args)
  if not args.chart:
    return paths
  panels = dict.fromkeys(row["temperature"] for row in table.rows)
  rows = {t: [r for r in table.rows if r["temperature"] == t] for t in panels}
  height = 1 + 0.24 * max(len(_bars(found)) for found in rows.values())
  figure, axes = plotting.new_figure(_CHARTED * len(rows), height, len(rows))
  for axis, (temperature, found) in zip(axes, rows.items(), strict=True):
    _draw(axis, found, f"T = {temperature}")
  return [*paths, *plotting.save(figure, args.output, table.name)]


def _bars(rows) -> dict[tuple[str, ...], list[Mapping[str, Any]]]:
  """Returns the rows of each way, a domain each, the slowest first."""
  found = {}
  for row in rows:
    key = tuple(row[name] for name in ("draft", "shape", "rule"))
    found.setdefault(key, []).append(row)
  return dict(sorted(found.items(), key=lambda item: item[1][0]["in_all"]))


def _draw(axis, rows, title) -> None:
  bars = _bars(rows)
  colors = {"EXACT": "C0", "GREEDY_EXACT": "C0", "BOUNDED": "C1", "LOSSY": "C3"}
  for place, found in enumerate(bars.values()):
    color = "0.6" if found[0]["shape"] == "peer" else colors[found[0]["guarantee"]]
    axis.barh(place, found[0]["in_all"], color=color)
    for number, row in enumerate(found[1:], 1):
      label = row["domain"] if place == 0 else None
      axis.plot(row["in_all"], place, "D", color=f"C{number + 3}", ms=4, label=label)
  axis.axvline(1, color="0.3", linewidth=0.8)
  axis.set_yticks(range(len(bars)), [", ".join(key) for key in bars], fontsize=7)
  axis.set(xlabel="times plain decoding's speed", title=title)
  if axis.get_legend_handles_labels()[0]:
    axis.legend(fontsize=7, loc="lower right")


COMMAND = Command(__doc__, make, add_flags, write)
