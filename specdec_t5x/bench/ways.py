"""Every way to speculate for a target: drafters in their shapes, and rules."""

import argparse
import dataclasses
from collections.abc import Iterator, Mapping
from typing import Any

import jax

from specdec_t5x.analysis.trees import best_tree
from specdec_t5x.api import Model
from specdec_t5x.bench import tree
from specdec_t5x.bench.pairs import COPY, Draft, Study
from specdec_t5x.bench.programs import Decode
from specdec_t5x.build import headed
from specdec_t5x.contrib.cascade import Cascade
from specdec_t5x.contrib.layer_skip import LayerSkip
from specdec_t5x.contrib.link.client import Remote
from specdec_t5x.contrib.link.drafter import Link
from specdec_t5x.contrib.pruned import Pruned
from specdec_t5x.contrib.sparse import SparseDraft
from specdec_t5x.core.lenient import Lenient
from specdec_t5x.core.rules import RULES
from specdec_t5x.core.tree import chain, delayed
from specdec_t5x.core.types import Rule
from specdec_t5x.decoding.drafter import Drafter
from specdec_t5x.drafters.copy import Copy
from specdec_t5x.drafters.draft_model import DraftModel
from specdec_t5x.drafters.quantized import NAME as ROUNDED
from specdec_t5x.drafters.quantized import Quantized
from specdec_t5x.drafters.tree_draft import TreeDraft
from specdec_t5x.network.heads import FeatureDrafter

_STEM, _BRANCHES, _CANDIDATES = 2, 2, 4
_RANKS = 8
_LENIENCE = 0.5
_EXACT = RULES["traversal"]  # Of any tree; on a chain it is block verification.
_TRAINING = {
  "draft_model": "a draft model",
  "ngram": "counting",
  "heads": "heads on the target",
  COPY: "none",
}
TARGET = "target"
# The target drafts for itself, as much as pays.
_ROUNDED = {"rounded to 8 bits": Quantized(), "rounded to 4 bits": Quantized(4, 32)}


@dataclasses.dataclass(frozen=True)
class Way:
  """A way to speculate.

  Attributes:
    draft: the name of what drafts.
    shape: of its drafts, in words.
    drafter: what drafts; a name with `words`.
    rule: what judges the drafts.
    models: the drafter's networks.
    training: what had to be learned beside the target, in words.
    words: gamma and policy of a named drafter.
  """

  draft: str
  shape: str
  drafter: Drafter | str
  rule: Rule
  models: Model | None
  training: str
  words: Mapping[str, Any] = dataclasses.field(default_factory=dict)

  @property
  def key(self) -> tuple[str, str]:
    """What tells its drafts from other ways'."""
    return self.draft, self.shape

  @property
  def parameters(self) -> str:
    """How many parameters it adds, in millions."""
    leaves = jax.tree.leaves(self.models and self.models.params)
    return f"{sum(leaf.size for leaf in leaves) / 1e6:.2f}M"

  def decode(self, study: Study, temperature: float) -> Decode:
    """Returns this way for a study's target."""
    return study.decode(temperature, self.models, self.drafter, self.rule, **self.words)


def ways(
  study: Study, temperature: float, args: argparse.Namespace, address: str
) -> list[Way]:
  """Returns all ways that there are with a target and its drafts.

  Args:
    study: the target, its drafts and the inputs.
    temperature: of the sampling.
    args: flags `gamma`, `sizes` of heads' trees, `skip` and `no_rules`.
    address: where the first draft model also answers; empty where it does not.
  """
  found = [
    Way(draft.name, shape, drafter, rule, draft.model, _TRAINING[draft.drafter], *words)
    for draft in study.drafts
    if draft.drafter != ROUNDED  # A way for every target, below.
    for shape, drafter, rule, *words in _of_draft(study, draft, temperature, args)
  ]
  for shape, drafter in _ROUNDED.items():
    found.append(Way(TARGET, shape, drafter, _EXACT, None, "none"))
  if args.skip:
    drafter = LayerSkip(args.skip, args.gamma)
    shape = f"without {len(args.skip)} sublayers"
    found.append(Way(TARGET, shape, drafter, _EXACT, None, "none"))
  if address:
    drafter, name = Link(Remote(address), args.gamma), study.first_model.name
    training = _TRAINING["draft_model"]
    found.append(Way(name, "in another process", drafter, _EXACT, None, training))
  return found


def _of_draft(study, draft: Draft, temperature, args) -> Iterator[tuple]:
  """Yields shape, drafter, rule and words of each way with one draft."""
  if draft.source == COPY:
    # Of certain tokens no exact rule accepts more, and this one takes least time.
    yield "chain", Copy(args.gamma), RULES["token"]
    yield "chain, COPY_MATCH 1", Copy(args.gamma, match=1), RULES["token"]
    return
  network = draft.model.network
  if isinstance(network, FeatureDrafter):
    yield from _of_heads(study, draft, temperature, args.sizes)
    return
  plain = DraftModel(network, args.gamma)
  yield "chain", plain, _EXACT
  if draft.drafter == "ngram":
    return
  stems = delayed(_STEM, _BRANCHES, max(args.gamma, _STEM + 1))
  distinct = TreeDraft(network, stems, "distinct")
  yield f"stem {_STEM}, {_BRANCHES} branches", distinct, _EXACT
  if draft is study.first_model and not args.no_rules:
    yield from _of_first(network, plain, distinct, temperature, args.gamma)


def _of_first(network, plain, distinct, temperature, gamma) -> Iterator[tuple]:
  """Yields what is tried with one draft model alone: policies, and every rule."""
  yield "policy 'auto'", "draft_model", _EXACT, {"gamma": gamma, "policy": "auto"}
  if gamma > 2:
    lower = Cascade(network, Copy(gamma - 2, match=2), gamma)
    yield "chain, sped up by copies", lower, _EXACT
  if not temperature:
    for name in ("lenient", "typical", "top_k", "distance"):
      yield "chain", plain, _knobbed(name)
    return
  yield (
    "chain of distributions cut to 32",
    SparseDraft(network, gamma, top_k=32),
    _EXACT,
  )
  for name in ("token", "coupled", "lenient", "typical"):
    yield "chain", plain, _knobbed(name)
  yield f"stem {_STEM}, {_BRANCHES} branches", distinct, RULES["recursive"]
  independent = TreeDraft(network, delayed(0, _CANDIDATES, gamma))
  for name in ("kseq", "recursive", "traversal"):
    yield f"{_CANDIDATES} candidates", independent, RULES[name]


def _knobbed(name) -> Rule:
  return Lenient(_LENIENCE) if name == "lenient" else RULES[name]


def _of_heads(study, draft, temperature, sizes) -> Iterator[tuple]:
  """Yields heads' chain, pruned trees and, but for EAGLE's, their best fixed ones."""
  network = draft.model.network
  yield "chain", headed(network, chain(network.config.count)), _EXACT
  for size in sizes:
    pruned = Pruned(size, width=max(size // 2, _RANKS), ranks=_RANKS)
    yield f"pruned to {size}", headed(network, pruned), _EXACT
  if network.config.kind == "eagle":
    return
  acceptance = tree.acceptance(study, draft.model, temperature)
  for size in sizes:
    yield f"tree of {size}", headed(network, best_tree(acceptance, size)), _EXACT
