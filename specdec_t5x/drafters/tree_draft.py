"""Drafting a tree: several continuations of a draft model.

Several candidates: Sun et al. (SpecTr), arXiv 2310.15141. A stem that splits into
branches: delayed tree expansion, arXiv 2602.16994.

Shapes: B rows, G drafted nodes, N = G + 1, L uniforms per decision.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any

import jax.numpy as jnp
from jaxtyping import Array, Float

from specdec_t5x.core.knobs import KnobError, is_whole
from specdec_t5x.core.tree import Tree, check_size
from specdec_t5x.core.types import Cache, Proposal, Verdict
from specdec_t5x.decoding.contracts import Context, Drafter, Traits
from specdec_t5x.decoding.state import DecodeState
from specdec_t5x.drafters import siblings
from specdec_t5x.drafters.draft_model import DEFAULT_GAMMA
from specdec_t5x.network.net import read_last


def delayed(stem: int, branches: int, length: int | None = None) -> Tree:
  """Returns a chain of `stem` tokens that then splits into branches.

  With a stem of 0 the branches are independent candidates. (Delayed tree expansion,
  arXiv 2602.16994.)

  Args:
    stem: the number of tokens before the split.
    branches: the number of branches.
    length: the number of tokens from the root to the end of each branch; None is 5.
  """
  length = DEFAULT_GAMMA if length is None else length
  if not (
    is_whole(stem, 0) and is_whole(branches, 1) and is_whole(length, max(stem, 1))
  ):
    raise KnobError(
      "A tree needs {stem} of at least 0, {branches} of at least 1 and {gamma} of at "
      "least {stem} and 1, got {values[0]!r}, {values[1]!r} and {values[2]!r}.",
      values=(stem, branches, length),
    )
  check_size(stem + branches * (length - stem))
  level = [stem] * branches
  parents = list(range(stem))
  for _ in range(length - stem):
    parents += level
    first = len(parents) - branches + 1
    level = list(range(first, first + branches))
  return Tree(tuple(parents))


@dataclasses.dataclass(frozen=True)
class TreeDraft(Drafter):
  """Grows a tree from a network, with one call per level.

  Attributes:
    network: the drafting network, over the target's vocabulary.
    tree: the nodes to draft.
    siblings: 'independent' for draws from one distribution; 'distinct' for draws
      without replacement; 'likeliest' for the likeliest tokens, which are certain.
  """

  network: Any
  tree: Tree = dataclasses.field(default=delayed(2, 2))
  siblings: str = "independent"

  def __post_init__(self):
    siblings.check(self.tree, self.siblings)

  @property
  def traits(self) -> Traits:
    """Whether siblings are independent draws from one distribution."""
    return Traits(independent=self.siblings == "independent")

  @property
  def networks(self) -> Mapping[str, Any]:
    """The drafting network, by name."""
    return {"draft": self.network}

  def start(self, context, caches, source) -> Cache:
    """Returns the draft's first cache."""
    return caches["draft"]

  def propose(
    self, context: Context, state: DecodeState, uniforms: Float[Array, "B G L"]
  ) -> tuple[Proposal, Cache]:
    """Drafts all nodes; see `decoding.contracts.Drafter`."""
    net = context.networks["draft"]
    lengths = state.lengths
    cache = state.drafter_state

    def read(level, tokens):
      nonlocal cache
      if tokens is None:
        logits, cache = read_last(net, cache, state.sequences, lengths)
        return logits[:, None]
      drafted = slice(1, level.above[-1] + 1)
      positions = lengths[:, None] + self.tree.depths[drafted] - 1
      sees = self.tree.sees[level.above, drafted]
      sees = jnp.broadcast_to(sees, (lengths.size, *sees.shape))
      logits, _, cache = net.extend(cache, tokens, positions, sees)
      return logits

    proposal = siblings.grow(self.tree, self.siblings, context, uniforms, read)
    return proposal, cache.at(lengths)

  def commit(
    self,
    context: Context,
    drafter_state: Cache,
    verdict: Verdict,
    features: Float[Array, "B N D"],
  ) -> Cache:
    """Returns the cache with the accepted path's entries moved together."""
    index = drafter_state.index
    path = self.tree.path(verdict.last)[:, 1:]
    return drafter_state.gathered(index[:, None] + path - 1, index)
