r"""Compares every way to speculate for a target: needs and speed-ups.

  python -m benchmarks methods --output DIR          # the demo pair, all drafts
  python -m benchmarks methods --target DIR --draft small=DIR --draft eagle=DIR \
    --draft copy --vocabulary FILE --inputs FILE --also news=FILE \
    --prefix "translate English to German: " --output DIR

Decodes every input at batch 1 by each way, in turn in one process: each draft in each
possible shape, and the first draft model under every rule and policy and in a separate
process. Inputs may be of several domains.
"""

import argparse
import contextlib
import dataclasses
import sys
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from benchmarks import jobs, plotting
from benchmarks.command import Command
from benchmarks.run import PLAIN, Run, Way, measure
from benchmarks.study import Decode, Study, pad_inputs
from benchmarks.table import Table, listed, render
from benchmarks.timed import each_turn
from benchmarks.ways import ways
from specdec_t5x.contrib.link import process
from specdec_t5x.contrib.link.client import Remote
from specdec_t5x.data import text_files
from specdec_t5x.drafters.draft_model import DEFAULT_GAMMA

_COSTS_RUNS = 5
_PANEL_WIDTH = 8  # Inches.


# (study, flags) -> greedy decoding by other libraries, by name.
PeersFn = Callable[[Study, argparse.Namespace], Mapping[str, Way]]


def make(args: argparse.Namespace, peers: PeersFn | None = None) -> Table:
  """Decodes every input by every way.

  Args:
    args: the flags.
    peers: returns the peers that decode in turn with the ways at temperature 0.
  """
  study, domains = _with_domains(jobs.load(args), args)
  with _elsewhere(study, args) as address:

    def every(temperature, batch):
      ours = {PLAIN: Way(study.decode(temperature))}
      ours |= ways(study, temperature, args, address)
      others = peers(study, args) if peers and not temperature else {}
      print(
        f"T={temperature:g}: {len(ours) - 1} ways, {len(others)} peers",
        file=sys.stderr,
      )
      return ours | others

    run = Run(every, study, temperatures=args.temperatures, domains=domains)
    measured = [row for row in measure(run) if row.key != PLAIN]
    # A shape has the same cost under all rules and temperatures.
    shapes = {}
    for row in measured:
      if row.way.decode:
        shapes.setdefault(row.key[:2], row.way.decode)
    costs = drafting_costs(study, shapes)
    lost = Remote(address).counts()["lost"] if address else 0
  rows = []
  for row in measured:
    values = {**row.values, "domain": row.domain}
    if row.way.decode:
      values["c"] = costs[row.key[:2]]
    rows.append(values)
  inputs = {name: domains.count(name) for name in dict.fromkeys(domains)}
  facts = {"inputs": inputs, "batch": 1, "gamma": args.gamma}
  if lost:  # The rows of the other process are of a draft that was away for a while.
    facts["drafts lost on the link"] = lost
  return render("methods", rows, {"task": study.job.task}, notes=[listed(facts)])


def _with_domains(study: Study, args) -> tuple[Study, list[str]]:
  """Returns the study with further inputs, and the domain of each input."""
  tokens = study.ids
  labels = [study.job.task] * len(tokens)
  for value in args.also:
    name, equals, path = value.partition("=")
    if not equals:
      raise ValueError(f"--also: expected NAME=FILE, got {value!r}.")
    lines = text_files.read_lines(path)[: args.num_inputs]
    texts = [args.prefix + line for line in lines]
    ids, _ = jobs.encoded(study.job.vocabulary, texts, args.prompts)
    tokens = tokens + ids
    labels = labels + [name] * len(ids)
  return dataclasses.replace(study, inputs=pad_inputs(tokens)), labels


def _elsewhere(study: Study, args) -> contextlib.AbstractContextManager[str]:
  """Starts the first draft model in another process; yields the address, or ""."""
  draft = None if args.no_rules else study.first_model
  if draft is None:
    return contextlib.nullcontext("")
  return process.drafting(draft.source, study.job.dtype)


def drafting_costs(
  study: Study, decodes: Mapping[Any, Decode]
) -> dict[Any, float | None]:
  """Returns c of each decode: seconds per drafted level over seconds per target call.

  c is None if the target's time is lost in noise.
  """
  if not decodes:
    return {}
  text = study.inputs[0]
  first = next(iter(decodes.values()))
  loops = {key: decode.loop(text, "draft") for key, decode in decodes.items()}
  turns = each_turn({"token": first.loop(text, "token"), **loops}, _COSTS_RUNS)
  token = float(np.median(turns.pop("token")))
  costs = {}
  for key, seconds in turns.items():
    level = max(float(np.median(seconds)), 0.0) / decodes[key].decoder.drafter.depth
    costs[key] = level / token if token > 0 else None
  return costs


def draw(table: Table) -> Any:
  """Returns the figure of speed-ups, with a panel per temperature."""
  panels = dict.fromkeys(row["temperature"] for row in table.rows)
  bars = {t: _bars(r for r in table.rows if r["temperature"] == t) for t in panels}
  height = 1 + 0.24 * max(map(len, bars.values()))
  figure, axes = plotting.new_figure(_PANEL_WIDTH * len(bars), height, len(bars))
  for axis, (temperature, groups) in zip(axes, bars.items(), strict=True):
    _draw(axis, groups, f"T = {temperature}")
  return figure


def _bars(rows) -> dict[tuple[str, ...], list[Mapping[str, Any]]]:
  """Returns the rows of each way, a row per domain, the slowest way first."""
  groups = {}
  for row in rows:
    key = tuple(row[name] for name in ("draft", "shape", "rule"))
    groups.setdefault(key, []).append(row)
  return dict(sorted(groups.items(), key=lambda item: item[1][0]["in_all"]))


def _draw(axis, bars, title) -> None:
  colors = {"EXACT": "C0", "GREEDY_EXACT": "C0", "BOUNDED": "C1", "LOSSY": "C3"}
  for place, rows in enumerate(bars.values()):
    color = "0.6" if rows[0]["shape"] == "peer" else colors[rows[0]["guarantee"]]
    axis.barh(place, rows[0]["in_all"], color=color)
    for number, row in enumerate(rows[1:], 1):
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
      "more inputs, an input on every line, with --prefix; may be repeated",
      {"action": "extend", "metavar": "NAME=FILE", "default": []},
    ),
    "skip": (
      [str],
      "sublayers, such as self_2, that layer skipping leaves out",
      {"metavar": "NAME", "default": []},
    ),
    "temperatures": [0.0, 1.0],
    "gamma": (DEFAULT_GAMMA, "draft length of draft models"),
    "sizes": ([8, 24], "sizes of trees"),
    "no_rules": (False, "measure every shape with one exact rule"),
  },
  {"tables": True, "heads": True},
  draw=draw,
)
