"""Recursive rejection: repeated token verification on the residual.

Source: Miao et al. (SpecInfer), arXiv 2305.09781, algorithm 2 (multi-step speculative
sampling). With certain tokens: reject, zero, renormalise (DART, arXiv 2601.19278).
Shapes: B batch, G drafted nodes, N = G + 1, V vocabulary.
"""

import dataclasses

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from specdec_t5x.core.distributions import residual
from specdec_t5x.core.rules.token import ratio
from specdec_t5x.core.rules.traversal import verify_rows
from specdec_t5x.core.types import Guarantee, Proposal, Rule, Verdict


@dataclasses.dataclass(frozen=True)
class Recursive(Rule):
  """Walks down a tree and accepts the first child that passes.

  A child x passes with probability min(1, p(x) / q(x)), where q is the distribution
  that x was drawn from. After a rejection the residual norm(max(0, p - q)) replaces p
  for the next sibling. On a chain the rule is token verification.
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
    return verify_rows(_walk, target_probs, proposal, uniforms)


def _walk(target_probs, draft_probs, parents, tokens, draws, is_valid):
  """Returns the accepted node of one row, and the next token's distribution.

  Nodes are in the order of levels, so each node is tested after its parent.
  """

  def test(carry, node):
    # `current` marks the nodes that spell the accepted tokens. There are several nodes
    # if independent siblings drew the same token. The children of every marked node are
    # draws.
    current, p, last = carry
    index, token, draw, draft_distribution = node
    candidates = is_valid & current[parents]
    q = jax.nn.one_hot(token, p.size) if draft_probs is None else draft_distribution
    is_candidate = candidates[index - 1]
    passes = is_candidate & (draw < ratio(p[token], q[token]))
    same_token = jnp.pad(candidates & (tokens == token), (1, 0))
    current = jnp.where(passes, same_token, current)
    remaining = jnp.where(is_candidate, residual(p, q), p)
    p = jnp.where(passes, target_probs[index], remaining)
    return (current, p, jnp.where(passes, index, last)), None

  is_root = jnp.arange(tokens.size + 1) == 0
  start = is_root, target_probs[0], jnp.array(0)
  nodes = jnp.arange(1, tokens.size + 1), tokens, draws, draft_probs
  (_, next_probs, last), _ = jax.lax.scan(test, start, nodes)
  return last, next_probs
