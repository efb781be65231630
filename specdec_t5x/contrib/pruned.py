"""Trees that each row chooses for itself: the likeliest paths, level by level.

Of every level the likeliest nodes are followed, and of all nodes the likeliest are
drafted: a tree of certain tokens (EAGLE-2, arXiv 2406.16858, section 4).

Where the distributions of all positions come before any token is drafted, they say
nothing of which tokens go together; the request's own text does, where pairs of tokens
stand side by side, and so does a table of n-grams of a corpus (DART, arXiv 2601.19278,
section 3.3, whose score adds half the logarithm of the table's probability).

Shapes: B rows, G drafted nodes, V vocabulary, T text, P nodes of a level, Q of the one
above, R ranks, M known tokens.
"""

import dataclasses
import itertools
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from specdec_t5x.core.distributions import perturbed
from specdec_t5x.core.knobs import check_knobs, finite, knob, whole
from specdec_t5x.core.tree import Tree
from specdec_t5x.core.types import Proposal
from specdec_t5x.decoding.context import Context
from specdec_t5x.decoding.state import DecodeState
from specdec_t5x.drafters.eagle import Eagle, EagleState, Going
from specdec_t5x.drafters.heads import Read, RowTrees, apply_draft, draft_logits

# From the tokens before nodes, and the place of each one's last, to the distributions
# after.
ProbsAfter = Callable[[Int[Array, "B P M"], Int[Array, "B P"]], Float[Array, "B P V"]]
# What a table has never seen costs a path no more than this.
_RAREST = 1e-6


@dataclasses.dataclass(frozen=True)
class Pruned(RowTrees):
  """A tree of the likeliest paths, whose tokens are certain.

  A path's score is the sum over its tokens of log q, of -`penalty` where the token
  and the one before it stand side by side nowhere in the request, and of `weight` times
  the logarithm of what the table gives the token there, if there is a table.

  Attributes:
    nodes: drafted nodes (G).
    width: nodes of a level that are followed (W).
    ranks: tokens of a position that are looked at (R).
    penalty: at least 0; at 0 the request's text does not matter.
    table: of n-grams, a network; None is none.
    weight: of the table, at least 0.
  """

  nodes: int = knob(16, whole(1), "drafted nodes")
  width: int = knob(6, whole(1), "nodes of a level that are followed")
  ranks: int = knob(6, whole(1), "likeliest tokens of a position that are considered")
  penalty: float = knob(0.0, finite(), "penalty of a pair of tokens not in the request")
  table: Any = None
  weight: float = knob(0.25, finite(), "weight of the table of n-grams")

  def __post_init__(self):
    check_knobs(self)
    if self.table is not None and not hasattr(self.table, "probs_after"):
      raise ValueError(
        f"Pruned.table must be a table of n-grams, got a {type(self.table).__name__}. "
        "Count one with python -m specdec_t5x.train --job=ngrams."
      )

  @property
  def networks(self) -> Mapping[str, Any]:
    """The table of n-grams, if there is one."""
    return {} if self.table is None else {"ngrams": self.table}

  def check(self, count: int) -> None:
    """Raises a ValueError where trees of so many positions have too few nodes."""
    widths = [min(self.width, self.ranks)]
    for _ in range(count - 1):
      widths.append(min(self.width, widths[-1] * self.ranks))
    if self.nodes > sum(widths):
      raise ValueError(
        f"Pruned.nodes must be at most {sum(widths)}, which are followed in {count} "
        f"positions, got {self.nodes}. Lower it, or raise width or ranks."
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
    """Returns each row's best tree, of at most `count` levels.

    Args:
      context: of the decode.
      state: where it stands.
      uniforms: of the nodes.
      read: gives the logits of each level.
      count: the most levels.
      source: the rows' inputs, which a penalty looks at.
    """

    def noisy(depth, *level):
      given = context.sampling, uniforms[:, [depth]], context.adjust
      return perturbed(read(depth, *level), *given)

    count = min(count, self.nodes)  # No path has more tokens.
    text = None if source is None else text_of(state, source)
    if self.table is None:
      known = state.last_tokens()[:, None]
      return self.grow(noisy, count, known, state.lengths, text)
    size = max(1, self.table.config.order - 1)
    at = state.lengths[:, None] + jnp.arange(-size, 0)
    known = jnp.take_along_axis(state.sequences, jnp.maximum(at, 0), axis=1)
    params = {"params": context.networks["ngrams"].params}
    probs_after = lambda *before: self.table.apply(
      params, *before, method="probs_after"
    )
    return self.grow(noisy, count, known, state.lengths, text, probs_after)

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
      read: gives the logits of each level.
      count: levels.
      known: the tokens before, the last of which the tree hangs from.
      lengths: how many there are in all.
      text: of the request; 0 is none.
      probs_after: the table.
    """
    rows = known.shape[0]
    before, scores = known[:, None], jnp.zeros((rows, 1))
    levels = []  # Tokens, scores, and their parents' places in the level above.
    for depth in range(count):
      above = (levels[-1][0], levels[-1][2]) if levels else (None, None)
      log_probs = jax.nn.log_softmax(read(depth, *above))
      tokens, of_depth = _top(log_probs, self.ranks)
      shape = (*before.shape[:2], self.ranks)
      tokens, of_depth = (jnp.broadcast_to(x, shape) for x in (tokens, of_depth))
      if self.penalty:
        in_text = stand_together(text, before[..., -1], tokens)
        of_depth = of_depth - self.penalty * ~in_text
      if probs_after:
        places = jnp.broadcast_to(lengths[:, None] - 1 + depth, before.shape[:2])
        distributions = probs_after(before, places)
        of_token = jnp.take_along_axis(distributions, tokens, axis=2)
        # At most 1, whatever sums are rounded to: no score may rise from its parent's.
        of_depth += self.weight * jnp.log(jnp.clip(of_token, _RAREST, 1.0))
      # What is no number is drafted, and then an error, rather than left out.
      of_depth = jnp.where(jnp.isnan(of_depth), 0.0, of_depth)
      values = (scores[..., None] + of_depth).reshape(rows, -1)
      scores, at = jax.lax.top_k(values, min(self.width, values.shape[1]))
      # In the order of their parents, and under one by score: parents never fall.
      order = jnp.argsort(at // self.ranks, axis=1, stable=True)
      scores, at = (jnp.take_along_axis(x, order, axis=1) for x in (scores, at))
      new = jnp.take_along_axis(tokens.reshape(rows, -1), at, axis=1)
      levels.append((new, scores, at // self.ranks))
      before = jnp.take_along_axis(before, at[..., None] // self.ranks, axis=1)
      before = jnp.concatenate([before[..., 1:], new[..., None]], axis=2)
    return self._best(levels)

  def _best(self, levels) -> Proposal:
    """Returns the tree of the best nodes: no node's score is above its parent's."""
    tokens, scores = (jnp.concatenate([x[i] for x in levels], axis=1) for i in (0, 1))
    # Of nodes that score alike the first ones, so that parents are taken, too.
    order = jnp.argsort(-scores, axis=1, stable=True)
    taken = jnp.sort(order[:, : self.nodes], axis=1)
    sizes = [level[0].shape[1] for level in levels]
    # Places among all nodes; the root's is the one before the first.
    firsts = [-1, 0, *itertools.accumulate(sizes)][: len(sizes)]
    parents = [first + level[2] for first, level in zip(firsts, levels, strict=True)]
    parents = jnp.concatenate(parents, axis=1)
    pick = lambda x: jnp.take_along_axis(x, taken, axis=1)
    # From a place among all nodes to the number that it has among those taken.
    number = (taken[:, :, None] <= pick(parents)[:, None, :]).sum(axis=1)
    is_valid = jnp.isfinite(pick(scores))
    return Proposal(pick(tokens), None, is_valid, Tree(number))


@dataclasses.dataclass(frozen=True)
class EagleTree(Eagle):
  """Drafts a tree of certain tokens that each row chooses for itself (EAGLE-2).

  Attributes:
    network: EAGLE's.
    shape: how many nodes, and how many of each level the layer reads; as many levels as
      the network was trained to go on for.
  """

  network: Any
  shape: Pruned

  independent = False

  def __post_init__(self):
    if self.shape.penalty or self.shape.table is not None:
      raise ValueError(
        "EAGLE's tree goes by its own distributions, which know the tokens before, got "
        f"a penalty of {self.shape.penalty} and a table of n-grams "
        f"{self.shape.table!r}. Leave both out."
      )
    self.shape.check(self.network.config.count)

  @property
  def tree(self) -> Tree:
    """Of as many nodes as every proposal; rows have their own."""
    return Tree((0,) * self.shape.nodes)

  @property
  def depth(self) -> int:
    """The most drafted tokens that can stand together."""
    return min(self.network.config.count, self.shape.nodes)

  @property
  def grown(self) -> int:
    """The most positions that its layer reads for one draft."""
    return self.shape.width * self.depth

  def first_tree(self, rows: int) -> Tree:
    """Returns a tree that no proposal had."""
    return Tree(jnp.zeros((rows, self.shape.nodes), jnp.int32))

  def propose(
    self, context: Context, state: DecodeState, uniforms: Float[Array, "B G L"]
  ) -> tuple[Proposal, EagleState]:
    """Drafts; no node counts before the target's first call."""
    logits, going = self.read(context, state)
    known, depths = going.cache.index, []
    sees = None  # [B, P, M], which of all nodes read so far the last level's see.

    def read(depth, tokens, parents):
      nonlocal going, sees
      if tokens is None:
        return logits[:, None]
      rows, size = tokens.shape
      of_parent = lambda x: jnp.take_along_axis(x, parents[..., None], axis=1)
      itself = jnp.broadcast_to(jnp.eye(size, dtype=bool), (rows, size, size))
      above = jnp.zeros((rows, size, 0), bool) if sees is None else of_parent(sees)
      sees = jnp.concatenate([above, itself], axis=2)
      depths.extend([depth - 1] * size)
      given = going.cache, of_parent(going.feature), context.target.embed(tokens)
      found, feature, cache = apply_draft(
        *(self.network, context, "extend", *given, going.target),
        *(known[:, None] + jnp.array(depths), sees),
      )
      going = Going(cache, feature, going.target)
      return draft_logits(self.network, context, found)

    proposal = self.shape.propose(context, state, uniforms, read, self.depth)
    own = state.drafter_state.replace(cache=going.cache.at(known), tree=proposal.tree)
    return self.known(state, proposal), own


def text_of(state: DecodeState, source: Int[Array, "B E"]) -> Int[Array, "B T"]:
  """Returns the input and the output so far, 0 where nothing is known."""
  is_known = jnp.arange(state.sequences.shape[1]) < state.lengths[:, None]
  # The start token, which is 0, too, keeps input and output apart.
  output = jnp.where(is_known, state.sequences, 0)
  return jnp.concatenate([source, output], axis=1)


def stand_together(
  text: Int[Array, "B T"], before: Int[Array, "B P"], after: Int[Array, "B P R"]
) -> Bool[Array, "B P R"]:
  """Returns which pairs of tokens stand side by side in the text."""
  first = text[:, None, :-1] == before[..., None]
  second = (text[:, None, None, 1:] == after[..., None]) & (after[..., None] > 0)
  return (first[:, :, None] & second).any(axis=-1)


def _top(log_probs, count):
  """Returns the likeliest tokens of each node, [B, P, R], and their values.

  Where these are no numbers the token is -1, which is none.
  """
  values, tokens = jax.lax.top_k(log_probs, count)
  is_lost = jnp.isnan(log_probs).any(axis=-1, keepdims=True)
  return jnp.where(is_lost, -1, tokens), jnp.where(is_lost, jnp.nan, values)
