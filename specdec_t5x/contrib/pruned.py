"""Trees chosen per row: the likeliest paths, level by level.

Only the likeliest nodes of each level are followed, and the likeliest of all nodes are
drafted: a tree of certain tokens (EAGLE-2, arXiv 2406.16858, section 4).

Some drafters compute the distributions of all positions before any token is drafted.
These distributions say nothing about which tokens go together. Pairs of adjacent tokens
in the request's text do, and so does a table of n-grams of a corpus (DART, arXiv
2601.19278, section 3.3; DART's score adds half the logarithm of the table's
probability).

Shapes: B rows, G drafted nodes, V vocabulary, T text, P nodes of a level, Q nodes of
the level above, R ranks, M known tokens.
"""

import dataclasses
import itertools
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from specdec_t5x.core.distributions import perturbed
from specdec_t5x.core.knobs import check_knobs, finite, knob, whole
from specdec_t5x.core.tree import Tree
from specdec_t5x.core.types import Proposal
from specdec_t5x.decoding.drafter import Context
from specdec_t5x.decoding.state import DecodeState
from specdec_t5x.drafters.eagle import Eagle, LayerInputs
from specdec_t5x.drafters.heads import (
  LayerState,
  Read,
  RowTrees,
  apply_draft,
  draft_logits,
)

# (the last M tokens up to each node, the position of each node's last token) -> the
# distributions after the tokens.
ProbsAfter = Callable[[Int[Array, "B P M"], Int[Array, "B P"]], Float[Array, "B P V"]]
# The least probability of a token under a table. The bound limits the cost of n-grams
# that the table lacks.
_RAREST = 1e-6


class _Level(NamedTuple):
  """The followed nodes of a level; `parents` are places in the level above."""

  tokens: Int[Array, "B P"]
  scores: Float[Array, "B P"]
  parents: Int[Array, "B P"]


@dataclasses.dataclass(frozen=True)
class Pruned(RowTrees):
  """A tree of the likeliest paths. The tokens are certain.

  A path's score is the sum over the path's tokens of log q, of -`penalty` if the
  request lacks the pair of the token and the previous token, and of `weight` times the
  logarithm of the table's probability of the token, if there is a table.

  Attributes:
    nodes: the number of drafted nodes (G).
    width: the number of nodes that are followed per level (W).
    ranks: the number of likeliest tokens that are considered per position (R).
    penalty: the penalty of a pair that the request lacks, at least 0; at 0 the
      request's text does not matter.
    table: the table of n-grams, a network; None for no table.
    weight: the weight of the table, at least 0.
  """

  nodes: int = knob(16, whole(1), "drafted nodes")
  width: int = knob(6, whole(1), "nodes that are extended on a level")
  ranks: int = knob(6, whole(1), "candidate tokens of a position")
  penalty: float = knob(0.0, finite(), "penalty of a pair of tokens not in the request")
  table: Any = None
  weight: float = knob(0.25, finite(), "weight of the table of n-grams")

  def __post_init__(self):
    check_knobs(self)
    if self.table is not None and not hasattr(self.table, "probs_after"):
      raise ValueError(
        f"Pruned.table must be a table of n-grams, got a {type(self.table).__name__}. "
        "Count a table with python -m specdec_t5x.train --job=ngrams."
      )

  @property
  def networks(self) -> Mapping[str, Any]:
    """The table of n-grams, if there is one."""
    return {} if self.table is None else {"ngrams": self.table}

  def check(self, count: int) -> None:
    """Raises a ValueError if trees of `count` positions have fewer nodes."""
    widths = [min(self.width, self.ranks)]
    for _ in range(count - 1):
      widths.append(min(self.width, widths[-1] * self.ranks))
    if self.nodes > sum(widths):
      raise ValueError(
        f"Pruned.nodes must be at most {sum(widths)}, the number of extended nodes in "
        f"{count} positions, got {self.nodes}. Lower nodes, or raise width or ranks."
      )

  def propose(
    self,
    context: Context,
    state: DecodeState,
    uniforms: Float[Array, "B G L"],
    read: Read,
    count: int,
    source: Int[Array, "B E"] | None = None,
  ) -> Proposal:
    """Returns each row's best tree; see `RowTrees`. The penalty reads `source`."""

    def read_with_noise(depth, tokens, parents):
      logits = read(depth, tokens, parents)
      return perturbed(logits, context.sampling, uniforms[:, [depth]], context.adjust)

    def probs_after(tokens, places):
      params = {"params": context.networks["ngrams"].params}
      return self.table.apply(params, tokens, places, method="probs_after")

    count = min(count, self.nodes)  # No path has more tokens.
    text = None if source is None else text_of(state, source)
    if self.table is None:
      last = state.last_tokens()[:, None]
      return self.grow(read_with_noise, count, last, state.lengths, text)
    size = max(1, self.table.config.order - 1)
    at = state.lengths[:, None] + jnp.arange(-size, 0)
    last = jnp.take_along_axis(state.sequences, jnp.maximum(at, 0), axis=1)
    return self.grow(read_with_noise, count, last, state.lengths, text, probs_after)

  def grow(
    self,
    read: Read,
    count: int,
    known: Int[Array, "B M"],
    lengths: Int[Array, "B"],
    text: Int[Array, "B T"] | None = None,
    probs_after: ProbsAfter | None = None,
  ) -> Proposal:
    """Returns each row's best tree.

    Args:
      read: computes the logits of each level.
      count: the number of levels.
      known: the last known tokens; the last of these tokens is the tree's root.
      lengths: the number of known tokens.
      text: the request's text; 0 stands for no token.
      probs_after: the table.
    """
    rows = known.shape[0]
    before = known[:, None]
    scores = jnp.zeros((rows, 1))
    levels = []
    for depth in range(count):
      if levels:
        logits = read(depth, levels[-1].tokens, levels[-1].parents)
      else:
        logits = read(depth, None, None)
      tokens, gains = _top(jax.nn.log_softmax(logits), self.ranks)
      shape = (*before.shape[:2], self.ranks)
      tokens = jnp.broadcast_to(tokens, shape)
      gains = jnp.broadcast_to(gains, shape)
      if self.penalty:
        in_text = stand_together(text, before[..., -1], tokens)
        gains = gains - self.penalty * ~in_text
      if probs_after:
        places = jnp.broadcast_to(lengths[:, None] - 1 + depth, before.shape[:2])
        distributions = probs_after(before, places)
        probs = jnp.take_along_axis(distributions, tokens, axis=2)
        # Rounded sums may exceed 1. The clip at 1 keeps a node's score from exceeding
        # the parent's score.
        gains += self.weight * jnp.log(jnp.clip(probs, _RAREST, 1.0))
      # A NaN is drafted, and raises an error later, instead of being left out.
      gains = jnp.where(jnp.isnan(gains), 0.0, gains)
      values = (scores[..., None] + gains).reshape(rows, -1)
      scores, at = jax.lax.top_k(values, min(self.width, values.shape[1]))
      # Nodes are ordered by parent, and by score among siblings, so that the parents'
      # numbers never decrease.
      order = jnp.argsort(at // self.ranks, axis=1, stable=True)
      scores = jnp.take_along_axis(scores, order, axis=1)
      at = jnp.take_along_axis(at, order, axis=1)
      followed = jnp.take_along_axis(tokens.reshape(rows, -1), at, axis=1)
      levels.append(_Level(followed, scores, at // self.ranks))
      before = jnp.take_along_axis(before, at[..., None] // self.ranks, axis=1)
      before = jnp.concatenate([before[..., 1:], followed[..., None]], axis=2)
    return self._best(levels)

  def _best(self, levels: list[_Level]) -> Proposal:
    """Returns the tree of the best nodes. No node scores higher than its parent."""
    tokens = jnp.concatenate([level.tokens for level in levels], axis=1)
    scores = jnp.concatenate([level.scores for level in levels], axis=1)
    # The sort is stable, so a parent comes before a child with the same score.
    order = jnp.argsort(-scores, axis=1, stable=True)
    best = jnp.sort(order[:, : self.nodes], axis=1)
    # Nodes are numbered across levels from 0; the root has number -1.
    sizes = [level.tokens.shape[1] for level in levels]
    firsts = [-1, 0, *itertools.accumulate(sizes)][: len(sizes)]
    parents = [
      first + level.parents for first, level in zip(firsts, levels, strict=True)
    ]
    parents = jnp.concatenate(parents, axis=1)
    tokens = jnp.take_along_axis(tokens, best, axis=1)
    scores = jnp.take_along_axis(scores, best, axis=1)
    parents = jnp.take_along_axis(parents, best, axis=1)
    # The parent's number in the tree is the rank among the best nodes, counted from 1.
    tree_parents = (best[:, :, None] <= parents[:, None, :]).sum(axis=1)
    return Proposal(tokens, None, jnp.isfinite(scores), Tree(tree_parents))


@dataclasses.dataclass(frozen=True)
class EagleTree(Eagle):
  """Drafts a tree of certain tokens, chosen per row (EAGLE-2).

  The tree has as many levels as the network was trained for.

  Attributes:
    network: EAGLE's network.
    shape: the number of nodes, and the number of nodes that the layer reads per level.
  """

  network: Any
  shape: Pruned

  independent = False

  def __post_init__(self):
    if self.shape.penalty or self.shape.table is not None:
      raise ValueError(
        "EAGLE's tree uses EAGLE's own distributions, conditioned on earlier tokens, "
        f"got a penalty of {self.shape.penalty} and a table of n-grams "
        f"{self.shape.table!r}. Leave penalty and table out."
      )
    self.shape.check(self.network.config.count)

  @property
  def tree(self) -> Tree:
    """A tree of the same size as every proposal; each row has another tree."""
    return Tree((0,) * self.shape.nodes)

  @property
  def depth(self) -> int:
    """The most drafted tokens on one path."""
    return min(self.network.config.count, self.shape.nodes)

  @property
  def max_positions(self) -> int:
    """The most positions that the layer reads for one draft."""
    return self.shape.width * self.depth

  def first_tree(self, rows: int) -> Tree:
    """Returns a placeholder tree for the time before the first proposal."""
    return Tree(jnp.zeros((rows, self.shape.nodes), jnp.int32))

  def propose(
    self, context: Context, state: DecodeState, uniforms: Float[Array, "B G L"]
  ) -> tuple[Proposal, LayerState]:
    """Drafts a tree, with no valid node before the target's first call."""
    logits, inputs = self.first_logits(context, state)
    index = inputs.cache.index
    depths = []
    sees = None  # [B, P, M], which of all M nodes so far the last level's P nodes see.

    def read(depth, tokens, parents):
      nonlocal inputs, sees
      if tokens is None:
        return logits[:, None]
      rows, size = tokens.shape
      itself = jnp.broadcast_to(jnp.eye(size, dtype=bool), (rows, size, size))
      if sees is None:
        above = jnp.zeros((rows, size, 0), bool)
      else:
        above = _gathered(sees, parents)
      sees = jnp.concatenate([above, itself], axis=2)
      depths.extend([depth - 1] * size)
      outputs, feature, cache = apply_draft(
        self.network,
        context,
        "extend",
        inputs.cache,
        _gathered(inputs.feature, parents),
        context.target.embed(tokens),
        inputs.target,
        index[:, None] + jnp.array(depths),
        sees,
      )
      inputs = LayerInputs(cache, feature, inputs.target)
      return draft_logits(self.network, context, outputs)

    proposal = self.shape.propose(context, state, uniforms, read, self.depth)
    drafter_state = state.drafter_state.replace(
      cache=inputs.cache.at(index), tree=proposal.tree
    )
    return self.without_early_drafts(state, proposal), drafter_state


def _gathered(rows: Array, places: Int[Array, "B P"]) -> Array:
  """Returns the entries [B, P, ...] of each row at `places`."""
  return jnp.take_along_axis(rows, places[..., None], axis=1)


def text_of(state: DecodeState, source: Int[Array, "B E"]) -> Int[Array, "B T"]:
  """Returns the input and the known output, zero-padded."""
  is_known = jnp.arange(state.sequences.shape[1]) < state.lengths[:, None]
  # The start token, which is 0 too, separates input and output.
  output = jnp.where(is_known, state.sequences, 0)
  return jnp.concatenate([source, output], axis=1)


def stand_together(
  text: Int[Array, "B T"], before: Int[Array, "B P"], after: Int[Array, "B P R"]
) -> Bool[Array, "B P R"]:
  """Returns whether each pair of tokens is adjacent in the text."""
  first = text[:, None, :-1] == before[..., None]
  second = (text[:, None, None, 1:] == after[..., None]) & (after[..., None] > 0)
  return (first[:, :, None] & second).any(axis=-1)


def _top(log_probs, count):
  """Returns each node's likeliest tokens [B, P, R], and their log-probabilities.

  If a log-probability is NaN, the node's tokens are -1, which is no token.
  """
  values, tokens = jax.lax.top_k(log_probs, count)
  is_lost = jnp.isnan(log_probs).any(axis=-1, keepdims=True)
  return jnp.where(is_lost, -1, tokens), jnp.where(is_lost, jnp.nan, values)
