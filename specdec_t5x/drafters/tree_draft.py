"""Drafting a tree: several tokens where a draft model could go on in several ways.

Several candidates: Sun et al. (SpecTr), arXiv 2310.15141. A stem that then branches:
delayed tree expansion, arXiv 2602.16994.

Shapes: B rows, G drafted nodes, N = G + 1, P nodes of a level, W of the next, V
vocabulary, L uniforms a decision.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from specdec_t5x.core.distributions import (
  Sampling,
  adjusted_probs,
  sample,
)
from specdec_t5x.core.tree import Tree, delayed
from specdec_t5x.core.types import Cache, Proposal, Verdict
from specdec_t5x.decoding.drafter import Context, Drafter
from specdec_t5x.decoding.state import DecodeState
from specdec_t5x.drafters.draft_model import DEFAULT_GAMMA, likeliest, read_last_two

SIBLINGS = ("independent", "distinct", "likeliest")


@dataclasses.dataclass(frozen=True)
class TreeDraft(Drafter):
  """Grows a tree from a network, level by level, one call a level.

  At temperature 0 siblings are the likeliest tokens, whatever `siblings` says: draws
  would be all the same.

  Attributes:
    network: drafts over the target's vocabulary.
    tree: which nodes to draft.
    siblings: 'independent' draws from one law; 'distinct', drawn without replacement;
      or the 'likeliest' tokens, which are certain.
  """

  network: Any
  tree: Tree = dataclasses.field(default=delayed(2, 2, DEFAULT_GAMMA))
  siblings: str = "independent"

  def __post_init__(self):
    if self.siblings not in SIBLINGS:
      raise ValueError(
        f"siblings must be one of {SIBLINGS}, got {self.siblings!r}: how the children "
        "of one node are drawn."
      )
    if not isinstance(self.tree, Tree) or not self.tree.is_static:
      raise ValueError(
        f"tree must be a core.tree.Tree with a tuple of parents, got {self.tree!r}."
      )

  @property
  def independent(self) -> bool:
    """Whether siblings are independent draws from one law."""
    return self.siblings == "independent"

  @property
  def networks(self) -> Mapping[str, Any]:
    """The draft."""
    return {"draft": self.network}

  def start(self, context: Context) -> Cache:
    """Returns the draft's first cache."""
    return context.start("draft")

  def propose(
    self, context: Context, state: DecodeState, uniforms: Float[Array, "B G L"]
  ) -> tuple[Proposal, Cache]:
    """Drafts all nodes; see `decoding.drafter.Drafter`."""
    extend, lengths = context.extend["draft"], state.lengths
    logits, cache = read_last_two(extend, state.drafter_state, state.sequences, lengths)
    logits, grown = logits[:, None], None
    for level in _levels(self.tree):
      new = self._draw(context.sampling, logits, level, uniforms)
      grown = new if grown is None else jax.tree.map(_beside, grown, new)
      if level[-1] < self.tree.size:
        # The last level is not fed: nothing is drafted after it.
        positions = lengths[:, None] + self.tree.depths[1 : level[-1] + 1] - 1
        sees = self.tree.sees[level, 1 : level[-1] + 1]
        sees = jnp.broadcast_to(sees, (lengths.size, *sees.shape))
        logits, _, cache = extend(cache, new[0], positions, sees)
    tokens, probs, is_valid = grown
    # A node without a token of its own takes what is below it along.
    gone = jnp.pad(~is_valid, ((0, 0), (1, 0)))
    is_valid = ~(self.tree.sees & gone[:, None]).any(axis=-1)[:, 1:]
    return Proposal(tokens, probs, is_valid, self.tree), cache.at(lengths)

  def commit(
    self,
    context: Context,
    drafter_state: Cache,
    verdict: Verdict,
    features: Float[Array, "B N D"],
  ) -> Cache:
    """Returns the cache with the accepted path's entries one behind the other."""
    del context, features
    known = drafter_state.index
    path = self.tree.path(verdict.last)[:, 1:]
    return drafter_state.gathered(known[:, None] + path - 1, known)

  def _draw(
    self,
    sampling: Sampling,
    logits: Float[Array, "B P V"],
    level: Int[np.ndarray, "W"],
    uniforms: Float[Array, "B G L"],
  ):
    """Returns a level's tokens, their laws (None of certain ones), and which count."""
    certain = sampling.greedy or self.siblings == "likeliest"
    laws = logits if certain else adjusted_probs(logits, sampling)
    parents = np.array(self.tree.parents)[level - 1]
    # Of the level before, the first node is place 0; the root is alone in its level.
    places = parents - _first_of_level(self.tree, int(parents[0]))
    ranks = _ranks(parents) * (certain or not self.independent)
    drawn = []
    for rank in range(ranks.max() + 1):
      nodes, at = level[ranks == rank], places[ranks == rank]
      law = laws[:, at]
      if certain:
        token, is_empty = likeliest(law), law.max(axis=-1) == -jnp.inf
      else:
        token = sample(law, uniforms[:, nodes - 1]).astype(jnp.int32)
        is_empty = law.max(axis=-1) == 0
      drawn.append((token, None if certain else law, ~is_empty))
      laws = laws.at[:, at].set(_without(law, token, certain))
    order = np.argsort(np.argsort(ranks, kind="stable"), kind="stable")
    together = jax.tree.map(lambda *x: jnp.concatenate(x, axis=1), *drawn)
    return jax.tree.map(lambda x: x[:, order], together)


def _without(law, token, certain):
  """Returns what is left for the next sibling: the law without this token."""
  is_token = jnp.arange(law.shape[-1]) == token[..., None]
  if certain:
    return jnp.where(is_token, -jnp.inf, law)
  rest = jnp.where(is_token, 0.0, law)
  mass = rest.sum(axis=-1, keepdims=True)
  return rest / jnp.where(mass > 0, mass, 1.0)


def _levels(tree: Tree) -> list[Int[np.ndarray, "W"]]:
  """Returns the drafted nodes of each level."""
  return [np.flatnonzero(tree.depths == depth + 1) for depth in range(tree.depth)]


def _first_of_level(tree: Tree, node: int) -> int:
  """Returns the first node that is as deep as `node`."""
  return int(np.argmax(tree.depths == tree.depths[node]))


def _ranks(parents: Int[np.ndarray, "W"]) -> Int[np.ndarray, "W"]:
  """Returns how many earlier siblings each node of a level has."""
  return np.arange(parents.size) - np.searchsorted(parents, parents)


def _beside(left, right):
  return jnp.concatenate([left, right], axis=1)
