"""Traversal verification: a tree judged from its leaves upwards.

Source: Weng et al., arXiv 2505.12398, algorithm 2 (there M_b is the target, M_s the
draft).
Shapes: B batch, G drafted nodes, N = G + 1, V vocabulary.
"""

import dataclasses
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from specdec_t5x.core import chain
from specdec_t5x.core.block import Block
from specdec_t5x.core.checks import check_uniforms
from specdec_t5x.core.distributions import sample
from specdec_t5x.core.tree import Tree
from specdec_t5x.core.types import Guarantee, Proposal, Rule, Verdict


@dataclasses.dataclass(frozen=True)
class Traversal(Rule):
  """Accepts the path to the first node whose own test succeeds, children first.

  A node's weight is w = min(1, w' p(x) / q(x)), w' and p those of its parent (w = 1 at
  the root), and it passes with probability w. Where it does not, it leaves the tree:
  with m = sum_x max(0, w' p(x) - q(x)) its parent's w' becomes m / (m + 1 - w') and
  the parent's p norm(max(0, w' p - q)), by which the weights of its other descendants
  change. The next token is drawn from the accepted node's p. On a chain it is block
  verification.
  """

  guarantee = Guarantee.EXACT
  takes_trees = True

  def verify(
    self,
    target_probs: Float[Array, "B N V"],
    proposal: Proposal,
    uniforms: Float[Array, "B N L"],
  ) -> Verdict:
    """Accepts a path and samples what follows it; see `core.types.Rule`."""
    check_uniforms(uniforms, proposal.tree.size + 1)
    tree, shape = proposal.tree, proposal.tokens.shape
    if tree.is_chain:  # The same verdict by the same uniforms, in half of the time.
      return Block().verify(target_probs, proposal, uniforms)
    parents = jnp.broadcast_to(jnp.asarray(tree.parents), shape)
    order = jnp.broadcast_to(post_order(tree), target_probs.shape[:2])
    nodes = parents, proposal.tokens, uniforms[:, :-1, -1], proposal.is_valid
    judge = lambda *row: _traverse(tree.depth, *row)
    last, next_probs = jax.vmap(judge)(
      target_probs, proposal.draft_probs, order, *nodes
    )
    return Verdict(last, sample(next_probs, uniforms[:, -1]))


def post_order(tree: Tree) -> Int[Array, "*B N"]:
  """Returns the nodes, each after its children, siblings in order; the root last."""
  nodes = jnp.arange(tree.size + 1)
  parents, sees = jnp.asarray(tree.parents), jnp.asarray(tree.sees)
  parent = jnp.pad(parents, [(0, 0)] * (parents.ndim - 1) + [(1, 0)])
  siblings = (parent[..., None] == parent[..., None, :]) & (nodes[:, None] < nodes)
  siblings = siblings & (nodes[:, None] > 0)
  meet = lambda a, b: (a.astype(jnp.float32) @ b.astype(jnp.float32)) > 0
  # A node comes before its ancestors, and before what is below a later sibling.
  apart = meet(meet(sees, siblings), jnp.swapaxes(sees, -1, -2))
  before = apart | (sees & ~jnp.eye(nodes.size, dtype=bool))
  return jnp.argsort(before.sum(axis=-2), axis=-1)


class _Nodes(NamedTuple):
  """The drafted nodes of one row.

  Attributes:
    depth: of the deepest.
    parents: of each.
    tokens: of each.
    draft_probs: the distributions that these were drawn from; None where they are
      certain.
    q: what these distributions give to the tokens.
  """

  depth: int
  parents: Int[Array, "G"]
  tokens: Int[Array, "G"]
  draft_probs: Float[Array, "G V"] | None
  q: Float[Array, "G"]


def _traverse(
  depth, target_probs, draft_probs, order, parents, tokens, draws, is_valid
):
  """Judges one row; the arguments but for `depth` are its own.

  Returns:
    The accepted node, and the distribution of what follows it.
  """
  q = jnp.ones(tokens.shape)
  q = q if draft_probs is None else draft_probs[jnp.arange(tokens.size), tokens]
  nodes = _Nodes(depth, parents, tokens, draft_probs, q)

  def test(carry):
    place, _, left = carry
    node, (_, weights, _) = order[place], left
    counts = is_valid[node - 1]
    # The root always passes; a node that does not count was never there.
    passes = (node == 0) | (counts & (draws[node - 1] < weights[node]))
    fails = counts & ~passes
    rest = _without(nodes, node, left)
    left = jax.tree.map(lambda new, old: jnp.where(fails, new, old), rest, left)
    return place + 1, ~passes, left

  is_root = jnp.arange(tokens.size + 1) == 0
  weights = _weigh(nodes, target_probs, is_root.astype(jnp.float32), is_root)
  start = jnp.array(0), jnp.array(True), (target_probs, weights, is_root)
  place, _, (distributions, _, _) = jax.lax.while_loop(
    lambda carry: carry[1], test, start
  )
  last = order[place - 1]
  return last, distributions[last]


def _weigh(nodes, distributions, weights, is_set):
  """Returns the weights by those that are set: the root's, or after a rejection."""
  p = distributions[nodes.parents, nodes.tokens]

  def next_level(_, weights):
    below = chain.ratio(weights[nodes.parents] * p, nodes.q)
    return jnp.where(is_set, weights, jnp.pad(below, (1, 0)))

  return jax.lax.fori_loop(0, nodes.depth, next_level, weights)


def _without(nodes, node, left):
  """Returns distributions, weights, and which are set, once a drafted node has left the
  tree.
  """
  (distributions, weights, is_set), number = left, node - 1
  parent = nodes.parents[number]
  if nodes.draft_probs is None:
    q = jax.nn.one_hot(nodes.tokens[number], distributions.shape[-1])
  else:
    q = nodes.draft_probs[number]
  weight = weights[parent]
  excess = jnp.maximum(weight * distributions[parent] - q, 0.0)
  mass = excess.sum()
  distribution = jnp.where(
    mass > 0, excess / jnp.where(mass > 0, mass, 1.0), distributions[parent]
  )
  # 0 / 0 where the weight is 1 and p = q: no mass is lost from there on, so a longer
  # path is bound to pass, and this one may.
  lost = mass + 1 - weight
  weight = jnp.where(lost > 0, mass / jnp.where(lost > 0, lost, 1.0), 1.0)
  distributions, is_set = (
    distributions.at[parent].set(distribution),
    is_set.at[parent].set(True),
  )
  return (
    distributions,
    _weigh(nodes, distributions, weights.at[parent].set(weight), is_set),
    is_set,
  )
