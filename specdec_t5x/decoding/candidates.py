"""Several drafts in one iteration: scored as a tree in one call, one of them kept.

The tree's root is the last known token, its branches are the C drafts; each token sees
the root and the tokens before it in its own draft.
Shapes: B rows, C candidates, G gamma, K = G + 1, N = C G + 1 nodes, V vocabulary.
"""

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from specdec_t5x.core.types import Cache, Candidates, ExtendFn, Proposal


def score(
  extend: ExtendFn, cache: Cache, last: Int[Array, "B"], proposal: Candidates
) -> tuple[Float[Array, "B C K V"], Float[Array, "B C K D"], Cache]:
  """Scores the last known token and all drafts in one call of the target.

  Args:
    extend: the target.
    cache: up to, and without, the last known token.
    last: that token.
    proposal: the drafts.

  Returns:
    Logits and features along each draft, and the cache with all N nodes.
  """
  rows, count, gamma = proposal.tokens.shape
  block = jnp.concatenate([last[:, None], proposal.tokens.reshape(rows, -1)], axis=1)
  depths, tree = _shape_of_tree(count, gamma)
  positions = cache.index[:, None] + depths
  tree = jnp.broadcast_to(tree, (rows, *tree.shape))
  logits, features, cache = extend(cache, block, positions, tree)
  along_drafts = _nodes(count, gamma)
  return logits[:, along_drafts], features[:, along_drafts], cache


def choose(
  proposal: Candidates,
  target_probs: Float[Array, "B C K V"],
  features: Float[Array, "B C K D"],
  cache: Cache,
  lengths: Int[Array, "B"],
  candidate: Int[Array, "B"],
) -> tuple[Proposal, Float[Array, "B K V"], Float[Array, "B K D"], Cache]:
  """Keeps one draft of each row, as if there had been no other.

  Args:
    proposal: the drafts.
    target_probs: p along each of them.
    features: the target's.
    cache: as `score` left it.
    lengths: tokens known before the drafts; draft 0 starts at that slot.
    candidate: which draft to keep.

  Returns:
    Proposal, laws and features of the draft, and the cache with its entries where a
    single draft's would be; what lies beyond them is stale.
  """
  rows, gamma = jnp.arange(lengths.size), proposal.tokens.shape[-1]
  of_draft = lambda array: array[rows, candidate]
  cache = cache.moved(lengths + gamma * candidate, lengths, gamma)
  fields = (proposal.tokens, proposal.draft_probs, proposal.num_valid)
  kept = Proposal(*map(of_draft, fields))
  return kept, of_draft(target_probs), of_draft(features), cache


def _nodes(count: int, gamma: int) -> Int[Array, "C K"]:
  """Returns the nodes along each draft, the root first."""
  nodes = 1 + jnp.arange(count * gamma).reshape(count, gamma)
  return jnp.pad(nodes, ((0, 0), (1, 0)))


def _shape_of_tree(
  count: int, gamma: int
) -> tuple[Int[Array, "N"], Bool[Array, "N N"]]:
  """Returns each node's depth, and which nodes each one sees."""
  node = jnp.arange(count * gamma)
  depths = jnp.concatenate([jnp.zeros(1, jnp.int32), 1 + node % gamma])
  drafts = jnp.concatenate([jnp.full(1, -1), node // gamma])
  same_draft = drafts[:, None] == drafts
  earlier = depths[:, None] >= depths
  return depths, (same_draft & earlier) | (jnp.arange(node.size + 1) == 0)
