"""Drawing a tree's nodes, level by level, from a distribution at each parent.

What drafters of trees have in common: a draft model's, heads'.

Shapes: B rows, G drafted nodes, W nodes of a level, P of the one above, V vocabulary, L
uniforms a decision.
"""

import dataclasses
import itertools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from specdec_t5x.core.checks import check_uniforms
from specdec_t5x.core.distributions import perturbed, sample
from specdec_t5x.core.tree import Tree
from specdec_t5x.core.types import Proposal
from specdec_t5x.decoding.context import Context
from specdec_t5x.drafters.stepwise import likeliest

SIBLINGS = ("independent", "distinct", "likeliest")


@dataclasses.dataclass(frozen=True)
class Level:
  """The drafted nodes of one depth, known when programs are compiled.

  Attributes:
    nodes: by their numbers in the tree.
    above: the nodes of the level before; of the first level the root.
    parents: where in `above` each one's parent stands.
  """

  nodes: Int[np.ndarray, "W"]
  above: Int[np.ndarray, "P"]
  parents: Int[np.ndarray, "W"]

  @property
  def ranks(self) -> Int[np.ndarray, "W"]:
    """How many earlier siblings each node has."""
    first = np.searchsorted(self.parents, self.parents)
    return np.arange(self.parents.size) - first


def check(tree: Any, siblings: Any) -> None:
  """Raises a ValueError where these are no tree, or no way to draw its siblings."""
  if siblings not in SIBLINGS:
    raise ValueError(
      f"siblings must be one of {SIBLINGS}, got {siblings!r}: how the children of one "
      "node are drawn."
    )
  if not isinstance(tree, Tree) or not tree.is_static:
    raise ValueError(
      f"tree must be a core.tree.Tree with a tuple of parents, got {tree!r}."
    )


def levels(tree: Tree) -> list[Level]:
  """Returns a tree's levels, the root's left out."""
  by_depth = [np.flatnonzero(tree.depths == depth) for depth in range(tree.depth + 1)]
  parents = np.array(tree.parents)
  return [
    Level(nodes, above, parents[nodes - 1] - above[0])
    for above, nodes in itertools.pairwise(by_depth)
  ]


@dataclasses.dataclass(frozen=True)
class Growing:
  """Grows one proposal.

  At temperature 0 siblings are the likeliest tokens, whatever `siblings` says: draws
  would be all the same. Coupled ones are the likeliest with the noise of their place.

  Attributes:
    tree: which nodes to draft.
    siblings: one of `SIBLINGS`.
    context: of the decode: how distributions are adjusted.
    uniforms: of each node.
  """

  tree: Tree
  siblings: str
  context: Context
  uniforms: Float[Array, "B G L"]

  def grow(
    self, read: Callable[[Level, Int[Array, "B P"] | None], Float[Array, "B #P V"]]
  ) -> Proposal:
    """Returns the proposal.

    Args:
      read: from a level and the tokens of the one above (None: the root's) to the
        logits after these, or to one row of logits where they are the same after all.
        It is called once a level, in order.
    """
    check_uniforms(self.uniforms, self.tree.size)
    certain = self.context.sampling.certain or self.siblings == "likeliest"
    take = self._likeliest if certain else self._drawn
    tokens, taken = None, []
    for level in levels(self.tree):
      taken.append(take(read(level, tokens), level))
      tokens = taken[-1][0]
    together = lambda *parts: jnp.concatenate(parts, axis=1)
    tokens, probs, is_valid = jax.tree.map(together, *taken)
    # A node without a token of its own takes what is below it along.
    gone = jnp.pad(~is_valid, ((0, 0), (1, 0)))
    is_valid = ~(self.tree.sees & gone[:, None]).any(axis=-1)[:, 1:]
    return Proposal(tokens, probs, is_valid, self.tree)

  def _likeliest(self, logits: Float[Array, "B #P V"], level: Level):
    """Returns a level's certain tokens, None for their probs, and which count."""
    sampling, adjust = self.context.sampling, self.context.adjust
    place = self.tree.depths[level.nodes[0]] - 1
    best, left = [], perturbed(logits, sampling, self.uniforms[:, [place]], adjust)
    for _ in range(level.ranks.max() + 1):
      token = likeliest(left)
      # A distribution that is no number has a token, which is then an error.
      best.append((token, left.max(axis=-1) != -jnp.inf))
      left = jnp.where(_is_token(left, token), -jnp.inf, left)
    tokens, counts = (jnp.stack(column, axis=-1) for column in zip(*best, strict=True))
    of_one = logits.shape[1] == 1
    parents = np.zeros_like(level.parents) if of_one else level.parents
    return tokens[:, parents, level.ranks], None, counts[:, parents, level.ranks]

  def _drawn(self, logits: Float[Array, "B #P V"], level: Level):
    """Returns a level's drawn tokens, the distribution of each, and which count."""
    distributions = self.context.adjust(logits, self.context.sampling)
    shape = distributions.shape[0], level.above.size, distributions.shape[-1]
    distributions = jnp.broadcast_to(distributions, shape)
    ranks = level.ranks * (self.siblings == "distinct")
    drawn = []
    for rank in range(ranks.max() + 1):
      nodes, at = level.nodes[ranks == rank], level.parents[ranks == rank]
      distribution = distributions[:, at]
      token = sample(distribution, self.uniforms[:, nodes - 1]).astype(jnp.int32)
      drawn.append((token, distribution, distribution.max(axis=-1) != 0))
      if rank < ranks.max():
        distributions = distributions.at[:, at].set(_without(distribution, token))
    order = np.argsort(np.argsort(ranks, kind="stable"), kind="stable")
    together = jax.tree.map(lambda *x: jnp.concatenate(x, axis=1), *drawn)
    return jax.tree.map(lambda x: x[:, order], together)


def _without(distribution: Float[Array, "B W V"], token: Int[Array, "B W"]):
  """Returns what is left for the next sibling: the distribution without this token."""
  rest = jnp.where(_is_token(distribution, token), 0.0, distribution)
  mass = rest.sum(axis=-1, keepdims=True)
  return rest / jnp.where(mass > 0, mass, 1.0)


def _is_token(distribution, token):
  return jnp.arange(distribution.shape[-1]) == token[..., None]
