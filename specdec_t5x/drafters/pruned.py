"""Trees chosen per row: the likeliest paths, level by level.

Only the likeliest nodes of each level are followed, and the likeliest of all nodes are
drafted: a tree of certain tokens (EAGLE-2, arXiv 2406.16858, section 4).

Heads compute the distributions of all positions before any token is drafted. These
distributions say nothing about which tokens go together. Pairs of adjacent tokens in
the request's text do, and so does a table of n-grams of a corpus (DART, arXiv
2601.19278, section 3.3; DART's score adds half the logarithm of the table's
probability).

Shapes: B rows, G drafted nodes, H heads, V vocabulary, T text, P nodes of a level, R
ranks, M known tokens, E input length, L uniforms per decision.
"""

import dataclasses
import itertools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from specdec_t5x.core.knobs import check_knobs, finite, knob, whole
from specdec_t5x.core.noise import perturbed
from specdec_t5x.core.tree_per_row import TreePerRow
from specdec_t5x.core.types import Proposal
from specdec_t5x.decoding.contracts import Context
from specdec_t5x.decoding.state import DecodeState

# The least probability of a token under a table. The bound limits the cost of n-grams
# that the table lacks.
_RAREST = 1e-6


@dataclasses.dataclass(frozen=True)
class Pruned:
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

  nodes: int = knob(16, whole(1))
  width: int = knob(6, whole(1))
  ranks: int = knob(6, whole(1))
  penalty: float = knob(0.0, finite())
  table: Any = None
  weight: float = knob(0.25, finite())

  def __post_init__(self):
    check_knobs(self)
    if self.table is not None and not hasattr(self.table, "probs_after"):
      raise ValueError(
        f"Pruned.table must be a table of n-grams, got a {type(self.table).__name__}. "
        "Count a table with python -m specdec_t5x.train --job=ngrams."
      )

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
    logits: Float[Array, "B H V"],
    source: Int[Array, "B E"],
  ) -> Proposal:
    """Returns each row's best tree.

    Args:
      context: the decode's context.
      state: the decode's state.
      uniforms: the uniforms of the nodes.
      logits: the logits of each depth.
      source: the rows' inputs, for the penalty.
    """

    def probs_after(tokens, places):
      params = {"params": context.networks["ngrams"].params}
      return self.table.apply(params, tokens, places, method="probs_after")

    count = min(logits.shape[1], self.nodes)  # No path has more tokens.
    logits = perturbed(
      logits[:, :count], context.sampling, uniforms[:, :count], context.adjust
    )
    is_known = jnp.arange(state.sequences.shape[1]) < state.lengths[:, None]
    # The start token, which is 0 too, separates input and output.
    output = jnp.where(is_known, state.sequences, 0)
    text = jnp.concatenate([source, output], axis=1)
    size = max(1, self.table.config.order - 1) if self.table else 1
    at = state.lengths[:, None] + jnp.arange(-size, 0)
    last = jnp.take_along_axis(state.sequences, jnp.maximum(at, 0), axis=1)
    table = probs_after if self.table else None
    return self.grow(logits, last, state.lengths, text, table)

  def grow(
    self,
    logits: Float[Array, "B H V"],
    known: Int[Array, "B M"],
    lengths: Int[Array, "B"],
    text: Int[Array, "B T"],
    probs_after: Callable[..., Float[Array, "B P V"]] | None = None,
  ) -> Proposal:
    """Returns each row's best tree.

    Args:
      logits: the logits of each level.
      known: the last known tokens; the last of these tokens is the tree's root.
      lengths: the number of known tokens.
      text: the request's text; 0 stands for no token.
      probs_after: the table, a function of the last M tokens up to each node and of the
        position of each node's last token; None for no table.
    """
    rows = known.shape[0]
    before = known[:, None]
    scores = jnp.zeros((rows, 1))
    log_probs = jax.nn.log_softmax(logits)
    top_gains, top_tokens = jax.lax.top_k(log_probs, self.ranks)
    # A depth with a NaN has the tokens -1, which is no token.
    is_lost = jnp.isnan(log_probs).any(axis=-1, keepdims=True)
    top_tokens = jnp.where(is_lost, -1, top_tokens)
    top_gains = jnp.where(is_lost, jnp.nan, top_gains)
    levels = []
    for depth in range(logits.shape[1]):
      shape = (*before.shape[:2], self.ranks)
      tokens = jnp.broadcast_to(top_tokens[:, [depth]], shape)
      gains = jnp.broadcast_to(top_gains[:, [depth]], shape)
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
      levels.append((followed, scores, at // self.ranks))
      before = jnp.take_along_axis(before, at[..., None] // self.ranks, axis=1)
      before = jnp.concatenate([before[..., 1:], followed[..., None]], axis=2)
    return self._best(levels)

  def _best(self, levels: Sequence[tuple[Array, Array, Array]]) -> Proposal:
    """Returns the tree of the best nodes. No node scores higher than its parent.

    A level has the tokens, the scores, and the places of parents in the level above.
    """
    tokens, scores, parents = zip(*levels, strict=True)
    # Nodes are numbered across levels from 0; the root has number -1.
    firsts = [-1, 0, *itertools.accumulate(level.shape[1] for level in tokens[:-2])]
    parents = [first + level for first, level in zip(firsts, parents, strict=False)]
    tokens = jnp.concatenate(tokens, axis=1)
    scores = jnp.concatenate(scores, axis=1)
    parents = jnp.concatenate(parents, axis=1)
    # The sort is stable, so a parent comes before a child with the same score.
    order = jnp.argsort(-scores, axis=1, stable=True)
    best = jnp.sort(order[:, : self.nodes], axis=1)
    tokens = jnp.take_along_axis(tokens, best, axis=1)
    scores = jnp.take_along_axis(scores, best, axis=1)
    parents = jnp.take_along_axis(parents, best, axis=1)
    # The parent's number in the tree is the rank among the best nodes, counted from 1.
    tree_parents = (best[:, :, None] <= parents[:, None, :]).sum(axis=1)
    return Proposal(tokens, None, jnp.isfinite(scores), TreePerRow(tree_parents))


def stand_together(
  text: Int[Array, "B T"], before: Int[Array, "B P"], after: Int[Array, "B P R"]
) -> Bool[Array, "B P R"]:
  """Returns whether each pair of tokens is adjacent in the text."""
  first = text[:, None, :-1] == before[..., None]
  second = (text[:, None, None, 1:] == after[..., None]) & (after[..., None] > 0)
  return (first[:, :, None] & second).any(axis=-1)
