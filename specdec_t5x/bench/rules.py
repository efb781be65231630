r"""Tokens a call of the target: each shape of draft under each rule that can judge it.

  python -m specdec_t5x.bench rules --target DIR --draft small=DIR --vocabulary FILE \
    --inputs FILE --prefix "translate English to German: " --output DIR

Chains, separate candidates and delayed trees (a stem, then branches), as deep as one
another and with as many nodes. At temperature 0 all exact rules are greedy
verification, and siblings the likeliest tokens. Nothing is timed, so other work may run
beside it. Writes rules.json, rules.csv and rules.md.
"""

import argparse
import sys
from collections.abc import Iterator

import jax
import numpy as np
from tqdm import tqdm

from specdec_t5x import api
from specdec_t5x.analysis.acceptance import Estimate, ratio
from specdec_t5x.bench import flags, jobs, programs
from specdec_t5x.bench.command import Command
from specdec_t5x.bench.environment import environment
from specdec_t5x.bench.study import Study
from specdec_t5x.bench.table import Column, Table, listed
from specdec_t5x.core.checks import is_whole
from specdec_t5x.core.distributions import Sampling
from specdec_t5x.core.rules import RULES
from specdec_t5x.core.tree import Tree, chain, delayed
from specdec_t5x.decoding.drafter import Drafter
from specdec_t5x.decoding.state import row_keys
from specdec_t5x.drafters.draft_model import DEFAULT_GAMMA, DraftModel
from specdec_t5x.drafters.tree_draft import TreeDraft

_OF_CHAINS, _OF_TREES = ("token", "block"), ("recursive", "kseq", "traversal")
_COLUMNS = (
  Column("temperature", "T"),
  Column("shape", "draft"),
  Column("nodes", "nodes"),
  Column("depth", "depth"),
  Column("siblings", "siblings", missing="-"),
  *(Column(name, name, missing="-") for name in ("greedy", *_OF_CHAINS, *_OF_TREES)),
)


def add_flags(parser: argparse.ArgumentParser) -> None:
  """Adds the command's flags."""
  flags.add_pairs(parser)
  # Of jobs that are timed.
  parser.set_defaults(num_tokens=None, runs=None)
  add = parser.add_argument
  flags.add_temperatures(parser)
  add("--gamma", type=int, default=DEFAULT_GAMMA, help="depth (%(default)s)")
  add("--branches", type=int, default=2, help="or candidates (%(default)s)")
  add("--stem", type=int, default=2, help="tokens before the branches (%(default)s)")
  add("--batch", type=int, default=16, help="inputs at once (%(default)s)")
  add("--seed", type=int, default=0, help="of the sampling (%(default)s)")
  flags.add_output(parser, None)


def make(args: argparse.Namespace) -> Table:
  """Decodes every input with each shape under each rule."""
  drafts = shapes(args.gamma, args.branches, args.stem)
  study = jobs.from_flags(args)[0].load()
  if study.drafts[0].model is None:
    raise ValueError("--draft: trees need a network or a table, got `copy`.")
  rows = [
    {"temperature": f"{temperature:g}", "shape": shape, **row}
    for temperature in args.temperatures
    for shape, tree in tqdm(drafts, desc=f"T={temperature:g}", file=sys.stderr)
    for row in _rows(study, tree, temperature, args)
  ]
  notes = (
    "Output tokens over calls of the target, all of which score the whole draft; [95% "
    "interval], inputs as the unit. Depth: calls of the draft model. On a chain "
    "'recursive' and 'kseq' are 'token', and 'traversal' is 'block'.",
    listed({"inputs": len(study.inputs), "gamma": args.gamma, "batch": args.batch}),
    listed(environment()),
  )
  title = f"Tokens a call of the target, {study.job.task}, draft {study.drafts[0].name}"
  return Table("rules", title, _COLUMNS, rows, notes, vars(args))


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
  network = study.drafts[0].model.network
  drafters = {None: DraftModel(network, tree.size)}
  if not tree.is_chain:
    ways = ("independent", "distinct") if temperature else ("likeliest",)
    drafters = {way: TreeDraft(network, tree, way) for way in ways}
  for way, drafter in drafters.items():
    yield {
      "nodes": tree.size,
      "depth": tree.depth,
      "siblings": way,
      **{
        name: _tokens_per_call(study, drafter, name, temperature, args)
        for name in _rules(drafter, temperature)
      },
    }


def _rules(drafter: Drafter, temperature: float) -> list[str]:
  """Returns the rules that differ from one another on these drafts."""
  if not temperature:
    return ["greedy"]
  if drafter.tree.is_chain:
    return [*_OF_CHAINS]
  names = {name: RULES[name].needs_independent for name in _OF_TREES}
  return [name for name in names if drafter.independent or not names[name]]


def _tokens_per_call(
  study: Study, drafter: Drafter, rule: str, temperature: float, args
) -> Estimate:
  models = study.target, study.drafts[0].model
  decoder, params = programs.together(*models, drafter, rule)
  sampling, room = Sampling(temperature=temperature), study.job.max_length
  run = programs.decoding(decoder, params, sampling, room, study.eos_id)
  key, ids = jax.random.key(args.seed), [row[0].tolist() for row in study.inputs]
  columns = []
  for first, inputs, count in api.padded_batches(ids, args.batch):
    info = run(inputs, row_keys(key, args.batch, first)).statistics
    columns.append(np.stack([info.emitted, info.target_calls])[:, :count])
  return ratio(*np.concatenate(columns, axis=1))


COMMAND = Command(__doc__, make, add_flags)
