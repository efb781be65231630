"""Every way to speculate for a target: drafters, shapes and rules."""

import argparse
from collections.abc import Iterator, Mapping
from typing import Any

import jax

from benchmarks import tree
from benchmarks.run import Way
from benchmarks.study import COPY, Draft, Study
from benchmarks.trees import best_tree
from specdec_t5x.build import headed
from specdec_t5x.contrib.link.client import Remote
from specdec_t5x.contrib.link.drafter import Link
from specdec_t5x.contrib.sparse import SparseDraft
from specdec_t5x.core.rules import RULES, rule_at
from specdec_t5x.core.rules.lenient import Lenient
from specdec_t5x.core.tree import chain, delayed
from specdec_t5x.core.types import Rule
from specdec_t5x.decoding.contracts import Drafter
from specdec_t5x.drafters.cascade import Cascade
from specdec_t5x.drafters.copy import Copy
from specdec_t5x.drafters.draft_model import DraftModel
from specdec_t5x.drafters.of_target import NAME as ROUNDED
from specdec_t5x.drafters.of_target import LayerSkip, Quantized
from specdec_t5x.drafters.pruned import Pruned
from specdec_t5x.drafters.tree_draft import TreeDraft
from specdec_t5x.network.heads import FeatureDrafter

_STEM, _BRANCHES, _CANDIDATES = 2, 2, 4
_RANKS = 8
_LENIENCE = 0.5
_EXACT = RULES["traversal"]  # For any tree; on a chain it is block verification.
_TRAINING = {
  "draft_model": "a draft model",
  "ngram": "counting",
  "heads": "heads on the target",
  COPY: "none",
  "": "none",
}
TARGET = "target"
# A shape's name, the drafter or a name, the rule, and keyword arguments of `together`.
Shape = tuple[str, Drafter | str, Rule, Mapping[str, Any]]
_IN_ANOTHER_PROCESS = "in another process"


def ways(
  study: Study, temperature: float, args: argparse.Namespace, address: str
) -> dict[tuple[str, str, str], Way]:
  """Returns all ways to decode with a target and drafts.

  Args:
    study: the target, the drafts and the inputs.
    temperature: the sampling's temperature.
    args: the flags `gamma`, `sizes` of heads' trees, `skip` and `no_rules`.
    address: the address of the first draft model's other process; "" without a process.

  Returns:
    The ways by draft, shape and rule.
  """
  drafts = [draft for draft in study.drafts if draft.drafter != ROUNDED]
  # Every target can draft for itself.
  itself = Draft(TARGET, "", None, "", "")
  result = {}
  for draft in (*drafts, itself):
    if draft is itself:
      shapes = _of_target(study, args, address)
    else:
      shapes = _of_draft(study, draft, temperature, args)
    for shape, drafter, rule, words in shapes:
      named = study.first_model if shape == _IN_ANOTHER_PROCESS else draft
      decode = study.decode(temperature, draft.model, drafter, rule, **words)
      judge, _ = rule_at(rule, decode.sampling)  # At T = 0 exact rules become greedy.
      name = type(judge).__name__.lower()
      leaves = jax.tree.leaves(draft.model and draft.model.params)
      columns = {
        "draft": named.name,
        "shape": shape,
        "rule": name,
        "guarantee": judge.guarantee.name,
        "nodes": decode.decoder.drafter.tree.size,
        "parameters": f"{sum(leaf.size for leaf in leaves) / 1e6:.2f}M",
        "training": _TRAINING[named.drafter],
      }
      result[named.name, shape, name] = Way(decode, columns=columns)
  return result


def _of_target(study, args, address) -> Iterator[Shape]:
  """Yields the ways without a second network in this process."""
  yield "rounded to 8 bits", Quantized(), _EXACT, {}
  yield "rounded to 4 bits", Quantized(4, 32), _EXACT, {}
  if args.skip:
    shape = f"without {len(args.skip)} sublayers"
    yield shape, LayerSkip(args.skip, args.gamma), _EXACT, {}
  if address:
    yield _IN_ANOTHER_PROCESS, Link(Remote(address), args.gamma), _EXACT, {}


def _of_draft(study, draft: Draft, temperature, args) -> Iterator[Shape]:
  """Yields the ways with a draft."""
  if draft.source == COPY:
    # No exact rule accepts more deterministic tokens, and 'token' takes the least time.
    yield "chain", Copy(args.gamma), RULES["token"], {}
    yield "chain, COPY_MATCH 1", Copy(args.gamma, match=1), RULES["token"], {}
    return
  network = draft.model.network
  if isinstance(network, FeatureDrafter):
    yield from _of_heads(study, draft, temperature, args.sizes)
    return
  plain = DraftModel(network, args.gamma)
  yield "chain", plain, _EXACT, {}
  if draft.drafter == "ngram":
    return
  stems = delayed(_STEM, _BRANCHES, max(args.gamma, _STEM + 1))
  distinct = TreeDraft(network, stems, "distinct")
  yield f"stem {_STEM}, {_BRANCHES} branches", distinct, _EXACT, {}
  if draft is study.first_model and not args.no_rules:
    yield from _of_first(network, plain, distinct, temperature, args.gamma)


def _of_first(network, plain, distinct, temperature, gamma) -> Iterator[Shape]:
  """Yields the ways for the first draft model only: the policy, and every rule."""
  words = {"gamma": gamma, "policy": "auto"}
  yield "policy 'auto'", "draft_model", _EXACT, words
  if gamma > 2:
    lower = Cascade(network, Copy(gamma - 2, match=2), gamma)
    yield "chain, sped up by copies", lower, _EXACT, {}
  if not temperature:
    for name in ("typical", "top_k", "distance"):
      yield "chain", plain, RULES[name], {}
    yield "chain", plain, Lenient(_LENIENCE), {}
    return
  sparse = SparseDraft(network, gamma, top_k=32)
  yield "chain of distributions cut to 32", sparse, _EXACT, {}
  for name in ("token", "coupled", "typical"):
    yield "chain", plain, RULES[name], {}
  yield "chain", plain, Lenient(_LENIENCE), {}
  yield f"stem {_STEM}, {_BRANCHES} branches", distinct, RULES["recursive"], {}
  independent = TreeDraft(network, delayed(0, _CANDIDATES, gamma))
  for name in ("kseq", "recursive", "traversal"):
    yield f"{_CANDIDATES} candidates", independent, RULES[name], {}


def _of_heads(study, draft, temperature, sizes) -> Iterator[Shape]:
  """Yields the chain and, except for EAGLE, pruned trees and the best fixed trees."""
  network = draft.model.network
  yield "chain", headed(network, chain(network.config.count)), _EXACT, {}
  if network.config.kind == "eagle":
    return
  for size in sizes:
    pruned = Pruned(size, width=max(size // 2, _RANKS), ranks=_RANKS)
    yield f"pruned to {size}", headed(network, pruned), _EXACT, {}
  acceptance = tree.acceptance(study, draft.model, temperature)
  for size in sizes:
    best = best_tree(acceptance, size)
    yield f"tree of {size}", headed(network, best), _EXACT, {}
