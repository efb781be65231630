r"""Every way to speculate for one target, side by side: its needs and its gains.

  python -m specdec_t5x.bench methods --output DIR          # the demo pair, all drafts
  python -m specdec_t5x.bench methods --target DIR --draft small=DIR --draft hydra=DIR \
    --draft copy --vocabulary FILE --inputs FILE --also news=FILE \
    --prefix "translate English to German: " --output DIR

Decodes every input at batch 1 by each way, all in turn in one process: each draft in
each of its shapes, the first draft model under every rule and policy, and in a process
of its own; at temperature 0 also the peers that are installed (Hugging Face,
CTranslate2, upstream T5X), with the same weights. Inputs may be of several domains.
"""

import argparse
import contextlib
import dataclasses
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from specdec_t5x.bench import jobs, plotting, programs
from specdec_t5x.bench.cells import PLAIN, Measured, Setting
from specdec_t5x.bench.command import Command
from specdec_t5x.bench.iteration import part_programs
from specdec_t5x.bench.pairs import Study, pad_inputs
from specdec_t5x.bench.peers import comparison
from specdec_t5x.bench.peers import programs as peers
from specdec_t5x.bench.table import Table, columns, listed
from specdec_t5x.bench.timed import Program, Timed, alternate, each_turn
from specdec_t5x.bench.ways import Way, ways
from specdec_t5x.core.distributions import Sampling
from specdec_t5x.core.greedy import rule_at
from specdec_t5x.data import spec_bench, text_files
from specdec_t5x.drafters.draft_model import DEFAULT_GAMMA
from specdec_t5x.link import process
from specdec_t5x.link.client import Remote
from specdec_t5x.network.functional import is_decoder_only

_COLUMNS = columns(
  "temperature T | domain inputs | draft | shape | rule | guarantee | nodes?- | "
  "parameters | training | tokens_per_call?- tokens a call | c:3?- | speed speed-up | "
  "in_all all inputs | identical equal outputs"
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
# Of Spec-Bench's tokens: articles are long.
_MAX_INPUT = 512
_COSTS_RUNS = 5
_CHARTED = 8  # Inches a panel is wide.


def make(args: argparse.Namespace) -> Table:
  """Decodes every input by every way."""
  study, labels = with_domains(jobs.from_flags(args)[0].load(), args)
  costs, rows = {}, []
  with _elsewhere(study, args) as address:
    for temperature in args.temperatures:
      rows += _rows(study, labels, Sampling(temperature), address, args, costs)
    lost = Remote(address).counts()["lost"] if address else 0
  inputs = {name: labels.count(name) for name in dict.fromkeys(labels)}
  facts = {"inputs": inputs, "batch": 1, "gamma": args.gamma}
  if lost:  # Those rows are of a draft that was away for a while.
    facts["drafts lost on their way from the other process"] = lost
  title = f"Ways to speculate, {study.job.task}"
  return Table("methods", title, _COLUMNS, rows, (_NOTES, listed(facts)))


def with_domains(study: Study, args: argparse.Namespace) -> tuple[Study, list[str]]:
  """Returns the study with further inputs, and the domain of each input.

  A demo pair may have, where no flag names others, texts of another domain.

  Raises:
    ValueError: where a flag is malformed, or a file can't be read.
  """
  tokens = study.ids
  labels = [study.job.task] * len(tokens)
  for name, texts, cut in _further(study.job, args):
    given = study.job.vocabulary, texts[: args.num_inputs], args.prompts, cut
    found, _ = jobs.encoded(*given)
    tokens, labels = tokens + found, labels + [name] * len(found)
  return dataclasses.replace(study, inputs=pad_inputs(tokens)), labels


def _further(job, args) -> Iterator[tuple[str, list[str], int | None]]:
  """Yields domains, their texts, and the tokens that these are cut to."""
  for value in args.also:
    name, equals, path = value.partition("=")
    if not equals:
      raise ValueError(f"--also: expected NAME=FILE, got {value!r}.")
    yield name, [args.prefix + line for line in text_files.read_lines(path)], None
  if args.spec_bench:
    groups = {}
    for text, group in spec_bench.prompts(args.spec_bench):
      groups.setdefault(group, []).append(text)
    yield from ((name, texts, _MAX_INPUT) for name, texts in groups.items())
  if not (args.also or args.spec_bench):
    for name, path in job.also.items():
      yield name, text_files.read_lines(path), job.cut


def _elsewhere(study: Study, args) -> contextlib.AbstractContextManager[str]:
  """Has the first draft model answer in another process; its address, or none."""
  draft = None if args.no_rules else study.first_model
  if draft is None:
    return contextlib.nullcontext("")
  return process.drafting(draft.source, study.job.dtype)


def _rows(
  study: Study, labels: Sequence[str], sampling: Sampling, address: str, args, costs
) -> Iterator[dict[str, Any]]:
  """Yields a row for each way and domain, all timed in turn; adds to `costs`."""
  temperature = sampling.temperature
  found = ways(study, sampling, args, address)
  made = [
    programs.together(study.target, x.models, x.drafter, x.rule, **x.words)
    for x in found
  ]
  runs = {PLAIN: study.plain(temperature)}
  runs |= {n: study.program(*each, temperature) for n, each in enumerate(made)}
  others = {} if temperature or args.no_peers else _peers(study, args)
  print(f"T={temperature:g}: {len(found)} ways, {len(others)} peers", file=sys.stderr)
  timed = alternate(runs | others, range(len(study.inputs)))
  # Once for each shape: neither rules nor temperatures draft at another cost.
  new = {w.key: x for w, x in zip(found, made, strict=True) if w.key not in costs}
  costs |= drafting_costs(study, new, sampling)
  for domain in dict.fromkeys(labels):
    known = {"temperature": f"{temperature:g}", "domain": domain}
    where = [number for number, label in enumerate(labels) if label == domain]
    part = {name: _of(one, where) for name, one in timed.items()}
    for number, way in enumerate(found):
      drafter = made[number][0].drafter
      row = _row(way, drafter, part[number], part[PLAIN], sampling)
      yield known | row | {"c": costs[way.key]}
    for name in others:
      yield known | _peer_row(name, part[name], part[PLAIN], study.eos_id)


def _of(timed: Timed, where: Sequence[int]) -> Timed:
  return Timed(timed.seconds[where], tuple(timed.results[number] for number in where))


def _row(way: Way, drafter, ours: Timed, plain: Timed, sampling) -> dict[str, Any]:
  rule, _ = rule_at(way.rule, sampling)  # At temperature 0 exact rules are greedy.
  return {
    "draft": way.draft,
    "shape": way.shape,
    "rule": type(rule).__name__.lower(),
    "guarantee": rule.guarantee.name,
    "nodes": drafter.tree.size,
    "parameters": way.parameters,
    "training": way.training,
    **Measured.timed(Setting(1, sampling.temperature), ours, plain).row(),
  }


def drafting_costs(
  study: Study, made: Mapping[Any, tuple[Any, Any]], sampling: Sampling
) -> dict[Any, float | None]:
  """Returns c of each decoder: a drafted level's seconds over a call of the target's.

  None where it is lost in noise.
  """
  loops = {}
  for key, (decoder, params) in made.items():
    start = programs.start(decoder, sampling, study.job.max_length)
    found, given = part_programs(start), (params, study.inputs[0])
    for name in ("draft",) if loops else ("token", "draft"):
      loops[name, key] = found[name], (*given, *programs.input_keys(1)), (2, 10)
  if not loops:
    return {}
  turns = each_turn(loops, _COSTS_RUNS)
  seconds = {key: float(np.median(each)) for key, each in turns.items()}
  token = next(iter(seconds.values()))
  depth = lambda key: made[key][0].drafter.tree.depth
  return {
    key: max(seconds["draft", key], 0.0) / depth(key) / token if token > 0 else None
    for key in made
  }


def _peers(study: Study, args) -> dict[str, Program]:
  """Returns what else decodes greedily with these weights, from an input's number."""
  draft = study.first_model
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
  ours, outputs = (comparison.outputs(timed, eos_id) for timed in (plain, theirs))
  same = sum(map(list.__eq__, ours, outputs))
  total = lambda timed, found: timed.seconds.sum() / sum(map(len, found))
  draws = peers.HF_GAMMA, peers.HF_DEFAULT, peers.HF_NO_MASK
  return {
    "draft": name,
    "shape": "peer",
    "rule": "greedy",
    "guarantee": "LOSSY" if name == peers.CT2["int8"] else "GREEDY_EXACT",
    "parameters": "the draft's" if name in draws else "0.00M",
    "training": "a draft model" if name in draws else "none",
    "speed": comparison.ratio((plain, ours), (theirs, outputs)),
    "in_all": float(total(plain, ours) / total(theirs, outputs)),
    "identical": f"{same}/{len(ours)}",
  }


def draw(table: Table) -> Any:
  """Returns the figure: speed-ups, a panel a temperature."""
  panels = dict.fromkeys(row["temperature"] for row in table.rows)
  bars = {t: _bars(r for r in table.rows if r["temperature"] == t) for t in panels}
  height = 1 + 0.24 * max(map(len, bars.values()))
  figure, axes = plotting.new_figure(_CHARTED * len(bars), height, len(bars))
  for axis, (temperature, found) in zip(axes, bars.items(), strict=True):
    _draw(axis, found, f"T = {temperature}")
  return figure


def _bars(rows) -> dict[tuple[str, ...], list[Mapping[str, Any]]]:
  """Returns the rows of each way, a domain each, the slowest first."""
  found = {}
  for row in rows:
    key = tuple(row[name] for name in ("draft", "shape", "rule"))
    found.setdefault(key, []).append(row)
  return dict(sorted(found.items(), key=lambda item: item[1][0]["in_all"]))


def _draw(axis, bars, title) -> None:
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


def _add(parser: argparse.ArgumentParser) -> None:
  jobs.flags(tables=True, heads=True, num_inputs=25)(parser)
  add, some = parser.add_argument, {"nargs": "+", "default": []}
  about = "further inputs, an input a line, with the same --prefix; several allowed"
  add("--also", **some, action="extend", metavar="NAME=FILE", help=about)
  about = "Spec-Bench's question.jsonl: a domain for each of its groups"
  add("--spec-bench", metavar="FILE", help=about)
  about = "sublayers, as self_2, that the target leaves out to draft for itself"
  add("--skip", **some, metavar="NAME", help=about)


COMMAND = Command(
  __doc__,
  make,
  {
    "temperatures": [0.0, 1.0],
    "gamma": (DEFAULT_GAMMA, "of draft models"),
    "sizes": ([8, 24], "of trees"),
    "no_peers": (False, "our own programs alone"),
    "no_rules": (False, "each shape under one exact rule"),
  },
  _add,
  draw=draw,
)
