r"""Every way to speculate for one target, side by side: its needs and its gains.

  python -m specdec_t5x.bench methods --output DIR          # the demo pair, all drafts
  python -m specdec_t5x.bench methods --target DIR --draft small=DIR --draft hydra=DIR \
    --draft copy --vocabulary FILE --inputs FILE --also news=FILE \
    --prefix "translate English to German: " --output DIR

Decodes every input at batch 1 by each way, all in turn in one process: each draft in
each of its shapes, the first draft model under every rule and policy, and in a process
of its own. Inputs may be of several domains.
"""

import argparse
import contextlib
import dataclasses
import sys
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np

from specdec_t5x.bench import jobs, plotting
from specdec_t5x.bench.command import Command
from specdec_t5x.bench.run import PLAIN, Run, Way, measure
from specdec_t5x.bench.study import Decode, Study, pad_inputs
from specdec_t5x.bench.table import Table, listed, render
from specdec_t5x.bench.timed import each_turn
from specdec_t5x.bench.ways import ways
from specdec_t5x.contrib.link import process
from specdec_t5x.contrib.link.client import Remote
from specdec_t5x.data import text_files
from specdec_t5x.drafters.stepwise import DEFAULT_GAMMA

_COSTS_RUNS = 5
_CHARTED = 8  # Inches a panel is wide.


# From the study and the flags to other libraries' greedy decoding, by name.
PeersFn = Callable[[Study, argparse.Namespace], Mapping[str, Way]]


def make(args: argparse.Namespace, peers: PeersFn | None = None) -> Table:
  """Decodes every input by every way.

  Args:
    args: the flags.
    peers: gives the peers that decode in turn with the ways at temperature 0.
  """
  study, domains = with_domains(jobs.load(args), args)
  with _elsewhere(study, args) as address:

    def every(temperature, batch):
      found = {PLAIN: Way(study.decode(temperature))}
      found |= ways(study, temperature, args, address)
      others = peers(study, args) if peers and not temperature else {}
      print(
        f"T={temperature:g}: {len(found) - 1} ways, {len(others)} peers",
        file=sys.stderr,
      )
      return found | others

    run = Run(every, study, temperatures=args.temperatures, domains=domains)
    found = [row for row in measure(run) if row.key != PLAIN]
    # Once for each shape: neither rules nor temperatures draft at another cost.
    shapes = {}
    for row in found:
      if row.way.decode:
        shapes.setdefault(row.key[:2], row.way.decode)
    costs = drafting_costs(study, shapes)
    lost = Remote(address).counts()["lost"] if address else 0
  rows = []
  for row in found:
    known = {"domain": row.domain}
    if row.way.decode:
      known["c"] = costs[row.key[:2]]
    rows.append({**row.values, **known})
  inputs = {name: domains.count(name) for name in dict.fromkeys(domains)}
  facts = {"inputs": inputs, "batch": 1, "gamma": args.gamma}
  if lost:  # Those rows are of a draft that was away for a while.
    facts["drafts lost on their way from the other process"] = lost
  return render("methods", rows, {"task": study.job.task}, notes=[listed(facts)])


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
  if not args.also:
    for name, path in job.also.items():
      yield name, text_files.read_lines(path), job.cut


def _elsewhere(study: Study, args) -> contextlib.AbstractContextManager[str]:
  """Has the first draft model answer in another process; its address, or none."""
  draft = None if args.no_rules else study.first_model
  if draft is None:
    return contextlib.nullcontext("")
  return process.drafting(draft.source, study.job.dtype)


def drafting_costs(
  study: Study, decodes: Mapping[Any, Decode]
) -> dict[Any, float | None]:
  """Returns c of each decode: a drafted level's seconds over a call of the target's.

  None where it is lost in noise.
  """
  if not decodes:
    return {}
  text, first = study.inputs[0], next(iter(decodes.values()))
  loops = {key: decode.loop(text, "draft") for key, decode in decodes.items()}
  turns = each_turn({"token": first.loop(text, "token"), **loops}, _COSTS_RUNS)
  token, costs = float(np.median(turns.pop("token"))), {}
  for key, seconds in turns.items():
    level = max(float(np.median(seconds)), 0.0) / decodes[key].decoder.drafter.depth
    costs[key] = level / token if token > 0 else None
  return costs


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


COMMAND = Command(
  __doc__,
  make,
  {
    **jobs.PAIRS,
    "num_inputs": (25, jobs.PAIRS["num_inputs"][1]),
    "also": (
      [str],
      "further inputs, an input a line, with the same --prefix; several allowed",
      {"action": "extend", "metavar": "NAME=FILE", "default": []},
    ),
    "skip": (
      [str],
      "sublayers, as self_2, that the target leaves out to draft for itself",
      {"metavar": "NAME", "default": []},
    ),
    "temperatures": [0.0, 1.0],
    "gamma": (DEFAULT_GAMMA, "of draft models"),
    "sizes": ([8, 24], "of trees"),
    "no_rules": (False, "each shape under one exact rule"),
  },
  {"tables": True, "heads": True},
  draw=draw,
)
