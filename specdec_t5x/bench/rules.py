r"""Tokens a call of the target: each shape of draft under each rule that can judge it.

  python -m specdec_t5x.bench rules --target DIR --draft small=DIR --vocabulary FILE \
    --inputs FILE --prefix "translate English to German: " --output DIR

Chains, separate candidates and delayed trees (a stem, then branches), as deep as one
another and with as many nodes. At temperature 0 all exact rules are greedy
verification, and siblings the likeliest tokens. Nothing is timed, so other work may run
beside it.
"""

import argparse
import sys
from collections.abc import Iterator

from tqdm import tqdm

from specdec_t5x.bench import jobs
from specdec_t5x.bench.command import Command
from specdec_t5x.bench.measured import Setting, counted
from specdec_t5x.bench.pairs import Study
from specdec_t5x.bench.table import Table, listed
from specdec_t5x.core.checks import is_whole
from specdec_t5x.core.rules import RULES
from specdec_t5x.core.tree import Tree, chain, delayed
from specdec_t5x.decoding.drafter import Drafter
from specdec_t5x.drafters.stepwise import DEFAULT_GAMMA, DraftModel
from specdec_t5x.drafters.tree_draft import TreeDraft

_OF_CHAINS, _OF_TREES = ("token", "block"), ("recursive", "kseq", "traversal")


def make(args: argparse.Namespace) -> Table:
  """Decodes every input with each shape under each rule."""
  drafts = shapes(args.gamma, args.branches, args.stem)
  study = jobs.load(args)
  draft = study.drafts[0]
  if draft.model is None:
    raise ValueError(f"--draft: trees need a network or a table, got `{draft.source}`.")
  rows = [
    {"temperature": f"{temperature:g}", "shape": shape, **row}
    for temperature in args.temperatures
    for shape, tree in tqdm(drafts, desc=f"T={temperature:g}", file=sys.stderr)
    for row in _rows(study, tree, temperature, args)
  ]
  facts = {"inputs": len(study.inputs), "gamma": args.gamma, "batch": args.batch}
  words = {"task": study.job.task, "draft": draft.name}
  return Table.of("rules", rows, words, notes=[listed(facts)])


def shapes(gamma: int, branches: int, stem: int) -> list[tuple[str, Tree]]:
  """Returns shapes of depth gamma, and of the nodes that the candidates then have.

  Raises:
    ValueError: where these are no lengths of a delayed tree.
  """
  if not (is_whole(branches, 2) and is_whole(stem, 1) and is_whole(gamma, stem + 1)):
    raise ValueError(
      "Expected at least two branches, and a stem of at least 1 that is shorter than "
      f"gamma, got --branches {branches}, --stem {stem} and --gamma {gamma}."
    )
  nodes, name = branches * gamma, f"stem {stem}, {branches} branches"
  return [
    ("chain", chain(gamma)),
    (name, delayed(stem, branches, gamma)),
    (f"{branches} candidates", delayed(0, branches, gamma)),
    (name, delayed(stem, branches, stem + (nodes - stem) // branches)),
    ("chain", chain(nodes)),
  ]


def _rows(study: Study, tree: Tree, temperature: float, args) -> Iterator[dict]:
  """Yields a row for each way to draw siblings."""
  model = study.drafts[0].model
  drafters = {None: DraftModel(model.network, tree.size)}
  if not tree.is_chain:
    ways = ("independent", "distinct") if temperature else ("likeliest",)
    drafters = {way: TreeDraft(model.network, tree, way) for way in ways}
  setting = Setting(tree.depth, temperature)
  for way, drafter in drafters.items():
    row = {"nodes": tree.size, "depth": tree.depth, "siblings": way}
    for rule in _rules_of(drafter, temperature):
      decode = study.decode(temperature, model, drafter, rule)
      row[rule] = counted(decode, study, setting, args).tokens_per_call
    yield row


def _rules_of(drafter: Drafter, temperature: float) -> list[str]:
  """Returns the rules that differ from one another on these drafts."""
  if not temperature:
    return ["greedy"]
  if drafter.tree.is_chain:
    return [*_OF_CHAINS]
  names = {name: RULES[name].needs_independent for name in _OF_TREES}
  return [name for name in names if drafter.independent or not names[name]]


COMMAND = Command(
  __doc__,
  make,
  {
    **jobs.PAIRS,
    "temperatures": [0.0, 1.0],
    "gamma": (DEFAULT_GAMMA, "depth"),
    "branches": (2, "or candidates"),
    "stem": (2, "tokens before the branches"),
    "batch": 16,
    "seed": 0,
  },
)
