"""Draws a tree's nodes, level by level, from a distribution at each parent.

Drafters of trees share this module: draft models and heads.

Shapes: B rows, G drafted nodes, W nodes of a level, P nodes of the level above, V
vocabulary, L uniforms per decision.
"""

import dataclasses
import itertools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from specdec_t5x.core.distributions import sample
from specdec_t5x.core.knobs import invalid
from specdec_t5x.core.noise import perturbed
from specdec_t5x.core.tree import Tree
from specdec_t5x.core.types import Proposal, check_uniforms
from specdec_t5x.decoding.contracts import Context
from specdec_t5x.drafters.draft_model import likeliest

SIBLINGS = ("independent", "distinct", "likeliest")


@dataclasses.dataclass(frozen=True)
class Level:
  """The drafted nodes of one depth, known when programs are compiled.

  Attributes:
    nodes: the nodes' numbers in the tree.
    above: the nodes of the level above; for the first level the root.
    parents: the index in `above` of each node's parent.
  """

  nodes: Int[np.ndarray, "W"]
  above: Int[np.ndarray, "P"]
  parents: Int[np.ndarray, "W"]

  @property
  def ranks(self) -> Int[np.ndarray, "W"]:
    """The number of earlier siblings of each node."""
    first = np.searchsorted(self.parents, self.parents)
    return np.arange(self.parents.size) - first


def check(tree: Any, siblings: Any) -> None:
  """Raises a ValueError if `tree` is no tree, or `siblings` is not in `SIBLINGS`."""
  if siblings not in SIBLINGS:
    fix = "{siblings} is the way to draw the children of a node."
    raise invalid("siblings", f"one of {SIBLINGS}", siblings, fix)
  if not isinstance(tree, Tree):
    raise ValueError(f"tree must be a core.tree.Tree, got {tree!r}.")


def levels(tree: Tree) -> list[Level]:
  """Returns a tree's levels without the root's level."""
  by_depth = [np.flatnonzero(tree.depths == depth) for depth in range(tree.depth + 1)]
  parents = np.array(tree.parents)
  return [
    Level(nodes, above, parents[nodes - 1] - above[0])
    for above, nodes in itertools.pairwise(by_depth)
  ]


def grow(
  tree: Tree,
  siblings: str,
  context: Context,
  uniforms: Float[Array, "B G L"],
  read: Callable[[Level, Int[Array, "B P"] | None], Float[Array, "B #P V"]],
) -> Proposal:
  """Drafts the nodes of a tree, level by level.

  At temperature 0 siblings are the likeliest tokens for any value of `siblings`, as
  draws would all be equal. Coupled siblings are the likeliest tokens after the noise of
  their position is added.

  Args:
    tree: the nodes to draft.
    siblings: a member of `SIBLINGS`.
    context: the decode's context, which adjusts distributions.
    uniforms: the uniforms of each node.
    read: function of a level and the tokens of the level above (None at the root),
      which returns the logits after these tokens. The result has a single row of logits
      if the logits are the same after all tokens. The function is called once per
      level, in order.
  """
  check_uniforms(uniforms, tree.size)
  certain = context.sampling.certain or siblings == "likeliest"
  sampling, adjust = context.sampling, context.adjust
  tokens = None
  draws = []
  for depth, level in enumerate(levels(tree)):
    logits = read(level, tokens)
    if certain:
      scores = perturbed(logits, sampling, uniforms[:, [depth]], adjust)
      draws.append(_likeliest(scores, level))
    else:
      is_distinct = siblings == "distinct"
      draws.append(_drawn(adjust(logits, sampling), level, uniforms, is_distinct))
    tokens, _, _ = draws[-1]
  tokens, probs, is_valid = jax.tree.map(_concatenated, *draws)
  # A node without a valid token invalidates all descendants.
  is_lost = jnp.pad(~is_valid, ((0, 0), (1, 0)))
  is_valid = ~(tree.sees & is_lost[:, None]).any(axis=-1)[:, 1:]
  return Proposal(tokens, probs, is_valid, tree)


def _likeliest(scores: Float[Array, "B #P V"], level: Level):
  """Returns a level's certain tokens, None for q, and whether each token counts."""
  is_shared = scores.shape[1] == 1
  tokens_by_rank = []
  counts_by_rank = []
  for _ in range(level.ranks.max() + 1):
    token = likeliest(scores)
    tokens_by_rank.append(token)
    # NaN scores count: `likeliest` gives the token -1, which marks an error.
    counts_by_rank.append(scores.max(axis=-1) != -jnp.inf)
    scores = jnp.where(_is_token(scores, token), -jnp.inf, scores)
  tokens = jnp.stack(tokens_by_rank, axis=-1)
  counts = jnp.stack(counts_by_rank, axis=-1)
  parents = np.zeros_like(level.parents) if is_shared else level.parents
  return tokens[:, parents, level.ranks], None, counts[:, parents, level.ranks]


def _drawn(
  distributions: Float[Array, "B #P V"],
  level: Level,
  uniforms: Float[Array, "B G L"],
  is_distinct: bool,
):
  """Returns a level's drawn tokens, their distributions, and which tokens count."""
  shape = distributions.shape[0], level.above.size, distributions.shape[-1]
  distributions = jnp.broadcast_to(distributions, shape)
  ranks = level.ranks * is_distinct
  drawn = []
  for rank in range(ranks.max() + 1):
    nodes = level.nodes[ranks == rank]
    parents = level.parents[ranks == rank]
    distribution = distributions[:, parents]
    token = sample(distribution, uniforms[:, nodes - 1]).astype(jnp.int32)
    drawn.append((token, distribution, distribution.max(axis=-1) != 0))
    if rank < ranks.max():
      distributions = distributions.at[:, parents].set(_without(distribution, token))
  order = np.argsort(np.argsort(ranks, kind="stable"), kind="stable")
  by_rank = jax.tree.map(_concatenated, *drawn)
  return jax.tree.map(lambda x: x[:, order], by_rank)


def _concatenated(*parts: Array) -> Array:
  return jnp.concatenate(parts, axis=1)


def _without(distribution: Float[Array, "B W V"], token: Int[Array, "B W"]):
  """Returns the next sibling's distribution: `distribution` without the token."""
  remainder = jnp.where(_is_token(distribution, token), 0.0, distribution)
  mass = remainder.sum(axis=-1, keepdims=True)
  return remainder / jnp.where(mass > 0, mass, 1.0)


def _is_token(distribution, token):
  return jnp.arange(distribution.shape[-1]) == token[..., None]
