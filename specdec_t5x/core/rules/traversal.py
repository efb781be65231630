"""Traversal verification: tests the nodes of a tree from the leaves upwards.

Source: Weng et al., arXiv 2505.12398, algorithm 2 (there M_b is the target, M_s the
draft).
Shapes: B batch, G drafted nodes, N = G + 1, V vocabulary.
"""

import dataclasses
import functools
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from specdec_t5x.core.distributions import residual, sample
from specdec_t5x.core.rules.block import Block, pass_probs
from specdec_t5x.core.rules.token import ratio
from specdec_t5x.core.tree import Tree
from specdec_t5x.core.types import Guarantee, Proposal, Rule, Verdict, check_uniforms


@dataclasses.dataclass(frozen=True)
class Traversal(Rule):
  """Accepts the path to the first node that passes a test, children before parents.

  The root has weight w = 1. A node with token x has weight w = min(1, w' p(x) / q(x)),
  where w' and p are the weight and the distribution of the node's parent. A node passes
  with probability w. A node that fails leaves the tree. With
  m = sum_x max(0, w' p(x) - q(x)), the parent's weight w' then becomes
  m / (m + 1 - w'), the parent's p becomes norm(max(0, w' p - q)), and the weights of
  the parent's other descendants change accordingly. The next token is drawn from the
  accepted node's p. On a chain the rule equals block verification.
  """

  guarantee = Guarantee.EXACT
  takes_trees = True

  def verify(
    self,
    target_probs: Float[Array, "B N V"],
    proposal: Proposal,
    uniforms: Float[Array, "B N L"],
  ) -> Verdict:
    """Accepts a path and samples the next token; see `core.types.Rule`."""
    tree = proposal.tree
    if tree.is_chain:  # The same verdict from the same uniforms, in half of the time.
      return Block().verify(target_probs, proposal, uniforms)
    order = jnp.broadcast_to(post_order(tree), target_probs.shape[:2])
    traverse = functools.partial(_traverse, depth=tree.depth)
    return verify_rows(traverse, target_probs, proposal, uniforms, order)


def verify_rows(
  walk: Callable[..., tuple[Int[Array, ""], Float[Array, "V"]]],
  target_probs: Float[Array, "B N V"],
  proposal: Proposal,
  uniforms: Float[Array, "B N L"],
  *arrays: Array,
) -> Verdict:
  """Verifies each row with `walk`, and samples the next token.

  `walk` takes a row's p and q (None if the tokens are certain), the parents, tokens,
  test uniforms and validity of the row's nodes, and the row's entries of `arrays`.
  `walk` returns the accepted node and the next token's distribution.
  """
  check_uniforms(uniforms, proposal.tree.size + 1)
  parents = jnp.asarray(proposal.tree.parents)
  last, next_probs = jax.vmap(walk)(
    target_probs,
    proposal.draft_probs,
    jnp.broadcast_to(parents, proposal.tokens.shape),
    proposal.tokens,
    uniforms[:, :-1, -1],
    proposal.is_valid,
    *arrays,
  )
  return Verdict(last, sample(next_probs, uniforms[:, -1]))


def post_order(tree: Tree) -> Int[Array, "*B N"]:
  """Returns the nodes in post-order: children first, siblings in order, root last."""
  nodes = jnp.arange(tree.size + 1)
  parents = jnp.asarray(tree.parents)
  sees = jnp.asarray(tree.sees)
  parent = jnp.pad(parents, [(0, 0)] * (parents.ndim - 1) + [(1, 0)])
  siblings = (parent[..., None] == parent[..., None, :]) & (nodes[:, None] < nodes)
  siblings = siblings & (nodes[:, None] > 0)
  # A node comes before its ancestors, and before the descendants of a later sibling.
  apart = _compose(_compose(sees, siblings), jnp.swapaxes(sees, -1, -2))
  before = apart | (sees & ~jnp.eye(nodes.size, dtype=bool))
  return jnp.argsort(before.sum(axis=-2), axis=-1)


def _compose(a: Bool[Array, "*B N N"], b: Bool[Array, "*B N N"]):
  """Returns the composition of two relations: the product of Boolean matrices."""
  return (a.astype(jnp.float32) @ b.astype(jnp.float32)) > 0


class _Nodes(NamedTuple):
  """The drafted nodes of one row."""

  depth: int  # Of the deepest node.
  parents: Int[Array, "G"]
  tokens: Int[Array, "G"]
  draft_probs: Float[Array, "G V"] | None  # None if the tokens are certain.
  q: Float[Array, "G"]  # The draft's probability of each token.


def _traverse(
  target_probs, draft_probs, parents, tokens, draws, is_valid, order, *, depth
):
  """Returns the accepted node of one row, and the next token's distribution.

  `order` are the nodes in post-order. `draws` are the uniforms of the tests.
  """
  if draft_probs is None:
    q = jnp.ones(tokens.shape)
  else:
    q = draft_probs[jnp.arange(tokens.size), tokens]
  nodes = _Nodes(depth, parents, tokens, draft_probs, q)

  def test(carry):
    place, _, tree_state = carry
    _, weights, _ = tree_state
    node = order[place]
    counts = is_valid[node - 1]
    # The root always passes. A node that does not count never changes the tree.
    passes = (node == 0) | (counts & (draws[node - 1] < weights[node]))
    fails = counts & ~passes
    pruned = _without(nodes, node, tree_state)
    tree_state = jax.tree.map(
      lambda new, old: jnp.where(fails, new, old), pruned, tree_state
    )
    return place + 1, ~passes, tree_state

  is_root = jnp.arange(tokens.size + 1) == 0
  weights = _weigh(nodes, target_probs, is_root.astype(jnp.float32), is_root)
  start = jnp.array(0), jnp.array(True), (target_probs, weights, is_root)
  place, _, (distributions, _, _) = jax.lax.while_loop(
    lambda carry: carry[1], test, start
  )
  last = order[place - 1]
  return last, distributions[last]


def _weigh(nodes, distributions, weights, is_set):
  """Computes the weights of all nodes from the root down.

  Args:
    nodes: the drafted nodes.
    distributions: [N, V], p after each node.
    weights: [N], read only at nodes in `is_set`.
    is_set: [N], the nodes with a fixed weight: the root, and each parent that a node
      was removed from.
  """
  p = distributions[nodes.parents, nodes.tokens]

  def next_level(_, weights):
    below = ratio(weights[nodes.parents] * p, nodes.q)
    return jnp.where(is_set, weights, jnp.pad(below, (1, 0)))

  return jax.lax.fori_loop(0, nodes.depth, next_level, weights)


def _without(nodes, node, tree_state):
  """Returns `tree_state` after the removal of a drafted node.

  Args:
    nodes: the drafted nodes.
    node: the node to remove.
    tree_state: distributions [N, V], weights [N], and `is_set` [N] as in `_weigh`.
  """
  distributions, weights, is_set = tree_state
  index = node - 1
  parent = nodes.parents[index]
  if nodes.draft_probs is None:
    q = jax.nn.one_hot(nodes.tokens[index], distributions.shape[-1])
  else:
    q = nodes.draft_probs[index]
  p = weights[parent] * distributions[parent]
  weight = pass_probs(jnp.maximum(p - q, 0.0).sum(), weights[parent])
  distributions = distributions.at[parent].set(residual(p, q))
  is_set = is_set.at[parent].set(True)
  weights = _weigh(nodes, distributions, weights.at[parent].set(weight), is_set)
  return distributions, weights, is_set
