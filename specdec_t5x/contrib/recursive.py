"""Recursive rejection: one token verification after the other on what is left.

Source: Miao et al. (SpecInfer), arXiv 2305.09781, algorithm 2 (multi-step speculative
sampling). With certain tokens: reject, zero, renormalise (DART, arXiv 2601.19278).
Shapes: B batch, G drafted nodes, N = G + 1, V vocabulary.
"""

import dataclasses

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from specdec_t5x.core import chain
from specdec_t5x.core.checks import check_uniforms
from specdec_t5x.core.distributions import residual, sample
from specdec_t5x.core.types import Guarantee, Proposal, Rule, Verdict


@dataclasses.dataclass(frozen=True)
class Recursive(Rule):
  """Walks down a tree, accepting the first child to pass.

  The first child is judged against p, with probability min(1, p(x) / q(x)); each one
  after a rejection against the residual norm(max(0, p - q)) that the rejection left in
  place of p, with q the distribution that this very sibling was drawn from. On a chain
  it is token verification.
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
    shape = proposal.tokens.shape
    parents = jnp.broadcast_to(jnp.asarray(proposal.tree.parents), shape)
    nodes = parents, proposal.tokens, uniforms[:, :-1, -1], proposal.is_valid
    last, next_probs = jax.vmap(_walk)(target_probs, proposal.draft_probs, *nodes)
    return Verdict(last, sample(next_probs, uniforms[:, -1]))


def _walk(target_probs, draft_probs, parents, tokens, draws, is_valid):
  """Judges one row; the arguments are its own.

  Levels follow each other, so each node is met after its parent was judged.
  """

  def judge(carry, node):
    # `here` are the nodes that spell what was accepted: there are several where
    # independent siblings drew the same token, and the children of all are draws.
    here, left, last = carry
    number, token, draw, of_node = node
    present = is_valid & here[parents]
    q = jax.nn.one_hot(token, left.size) if draft_probs is None else of_node
    is_present = present[number - 1]
    passes = is_present & (draw < chain.ratio(left[token], q[token]))
    agreeing = jnp.pad(present & (tokens == token), (1, 0))
    here = jnp.where(passes, agreeing, here)
    rest = jnp.where(is_present, residual(left, q), left)
    left = jnp.where(passes, target_probs[number], rest)
    return (here, left, jnp.where(passes, number, last)), None

  start = jnp.arange(tokens.size + 1) == 0, target_probs[0], jnp.array(0)
  nodes = jnp.arange(1, tokens.size + 1), tokens, draws, draft_probs
  (_, left, last), _ = jax.lax.scan(judge, start, nodes)
  return last, left
