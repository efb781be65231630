r"""Compares tokens per call of the target, for each draft shape and matching rule.

  python -m benchmarks rules --target DIR --draft small=DIR --vocabulary FILE \
    --inputs FILE --prefix "translate English to German: " --output DIR

The shapes are chains, separate candidates and delayed trees (a stem, then branches), of
equal depth or of equal size. At temperature 0 all exact rules are greedy verification,
and siblings are the likeliest tokens. Nothing is timed, so other work may run, too.
"""

import argparse

from benchmarks import jobs
from benchmarks.command import Command
from benchmarks.run import Run, Way, Ways, measure
from benchmarks.study import Study
from benchmarks.table import Table, listed, render
from specdec_t5x.core.knobs import is_whole
from specdec_t5x.core.rules import RULES
from specdec_t5x.core.tree import Tree, chain, delayed
from specdec_t5x.decoding.contracts import Drafter
from specdec_t5x.drafters.draft_model import DEFAULT_GAMMA, DraftModel
from specdec_t5x.drafters.tree_draft import TreeDraft

_CHAIN_RULES = ("token", "block")
_TREE_RULES = ("recursive", "kseq", "traversal")


def make(args: argparse.Namespace) -> Table:
  """Decodes every input with each shape under each rule."""
  drafts = shapes(args.gamma, args.branches, args.stem)
  study = jobs.load(args)
  draft = study.drafts[0]
  if draft.model is None:
    raise ValueError(
      f"--draft: trees need a network or a table, got `{draft.source}`. Give another "
      "draft."
    )
  run = Run(
    lambda temperature, batch: _ways(study, drafts, temperature),
    study,
    temperatures=args.temperatures,
    batches=[args.batch],
    timed=False,
    seed=args.seed,
  )
  rows = {}
  for result in measure(run):
    number, siblings, rule = result.key
    temperature = result.values["temperature"]
    columns = {"temperature": temperature, **result.way.columns}
    row = rows.setdefault((temperature, number, siblings), columns)
    row[rule] = result.cell.tokens_per_call
  facts = {"inputs": len(study.inputs), "gamma": args.gamma, "batch": args.batch}
  words = {"task": study.job.task, "draft": draft.name}
  return render("rules", list(rows.values()), words, notes=[listed(facts)])


def shapes(gamma: int, branches: int, stem: int) -> list[tuple[str, Tree]]:
  """Returns shapes of depth gamma, and shapes with the candidates' number of nodes.

  Raises:
    ValueError: if the lengths do not fit a delayed tree.
  """
  if not (is_whole(branches, 2) and is_whole(stem, 1) and is_whole(gamma, stem + 1)):
    raise ValueError(
      "Expected at least two branches, and a stem of at least 1 and shorter than "
      f"gamma, got --branches {branches}, --stem {stem} and --gamma {gamma}."
    )
  nodes = branches * gamma
  name = f"stem {stem}, {branches} branches"
  return [
    ("chain", chain(gamma)),
    (name, delayed(stem, branches, gamma)),
    (f"{branches} candidates", delayed(0, branches, gamma)),
    (name, delayed(stem, branches, stem + (nodes - stem) // branches)),
    ("chain", chain(nodes)),
  ]


def _ways(study: Study, drafts, temperature: float) -> Ways:
  """Returns a way for each shape, way to draw siblings, and rule."""
  model = study.drafts[0].model
  ways = {}
  for number, (shape, tree) in enumerate(drafts):
    drafters = {None: DraftModel(model.network, tree.size)}
    if not tree.is_chain:
      siblings = ("independent", "distinct") if temperature else ("likeliest",)
      drafters = {name: TreeDraft(model.network, tree, name) for name in siblings}
    for name, drafter in drafters.items():
      sizes = {"nodes": tree.size, "depth": tree.depth}
      columns = {"shape": shape, **sizes, "siblings": name}
      for rule in _rules_of(drafter, temperature):
        decode = study.decode(temperature, model, drafter, rule)
        ways[number, name, rule] = Way(decode, columns=columns)
  return ways


def _rules_of(drafter: Drafter, temperature: float) -> list[str]:
  """Returns the rules with different results on these drafts."""
  if not temperature:
    return ["greedy"]
  if drafter.tree.is_chain:
    return [*_CHAIN_RULES]
  if drafter.traits.independent:
    return [*_TREE_RULES]
  return [name for name in _TREE_RULES if not RULES[name].needs_independent]


COMMAND = Command(
  __doc__,
  make,
  {
    **jobs.PAIRS,
    "temperatures": [0.0, 1.0],
    "gamma": (DEFAULT_GAMMA, "depth of a tree"),
    "branches": (2, "number of branches or candidates"),
    "stem": (2, "number of tokens before the branches"),
    "batch": 16,
    "seed": 0,
  },
)
