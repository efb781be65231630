"""k-SEQ: of several independent draws, the first to pass a laxer test.

Source: Sun et al. (SpecTr), NeurIPS 2023, arXiv 2310.15141, algorithm 2 and section 4
(there p is the draft, q the target).
Shapes: B batch, G drafted nodes, N = G + 1, V vocabulary.
"""

import dataclasses

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from specdec_t5x.core import chain
from specdec_t5x.core.checks import check_uniforms
from specdec_t5x.core.distributions import residual, sample
from specdec_t5x.core.types import Guarantee, Proposal, Rule, Verdict

# Halvings of the interval that k-SEQ's rho lies in: any end of it is exact.
_BISECTIONS = 24


@dataclasses.dataclass(frozen=True)
class KSeq(Rule):
  """Of k draws, accepts the first x to pass with min(1, p(x) / (rho q(x))).

  One draw passes with probability beta = sum_x min(q(x), p(x) / rho), any of k with
  1 - (1 - beta)^k; rho is the least at which the target's mass suffices for that:
  1 - (1 - beta)^k = rho beta.
  """

  guarantee = Guarantee.EXACT
  takes_trees = True
  needs_independent = True

  def verify(
    self,
    target_probs: Float[Array, "B N V"],
    proposal: Proposal,
    uniforms: Float[Array, "B N L"],
  ) -> Verdict:
    """Accepts a path and samples what follows it; see `core.types.Rule`."""
    check_uniforms(uniforms, proposal.tree.size + 1)
    shape, vocab_size = proposal.tokens.shape, target_probs.shape[-1]
    parents = jnp.broadcast_to(jnp.asarray(proposal.tree.parents), shape)
    nodes = parents, proposal.tokens, uniforms[:, :-1, -1], proposal.is_valid
    distributions = proposal.distributions(vocab_size)
    last, next_probs = jax.vmap(_walk)(target_probs, distributions, *nodes)
    return Verdict(last, sample(next_probs, uniforms[:, -1]))


def _walk(target_probs, draft_probs, parents, tokens, draws, is_valid):
  """Judges one row; the arguments are its own."""

  def judge(carry):
    # `here` are the nodes that spell what was accepted: given that, the tokens of all
    # their children are independent draws from one q.
    here, _, last, _ = carry
    present = is_valid & here[parents]
    p, q = target_probs[last], draft_probs[jnp.argmax(present)]
    passes, rest = choose(p, q, tokens, present, draws)
    going, first = passes.any(), jnp.argmax(passes)
    agreeing = jnp.pad(present & (tokens == tokens[first]), (1, 0))
    here, last = jnp.where(going, agreeing, here), jnp.where(going, first + 1, last)
    return here, going, last, rest

  start = jnp.arange(tokens.size + 1) == 0, jnp.array(True), jnp.array(0)
  going = lambda carry: carry[1]
  _, _, last, rest = jax.lax.while_loop(going, judge, (*start, target_probs[0]))
  return last, rest


def choose(
  p: Float[Array, "V"],
  q: Float[Array, "V"],
  tokens: Int[Array, "G"],
  present: Bool[Array, "G"],
  uniforms: Float[Array, "G"],
) -> tuple[Bool[Array, "G"], Float[Array, "V"]]:
  """Judges the tokens of those present, independent draws from q.

  Returns:
    Which ones pass (the first of them is accepted), and the distribution of the token
    that is recovered where none does; p where nobody is present.
  """
  count = present.sum()
  rho = least_rho(p, q, count)
  one = jnp.minimum(q, p / rho)
  passes = present & (uniforms < chain.ratio(p[tokens], rho * q[tokens]))
  beta = one.sum()
  # Of the accepted tokens' distribution, any_passes / beta * one; no mass where beta is
  # 0.
  share = any_passes(beta, count) / jnp.where(beta > 0, beta, 1.0)
  return passes, residual(p, share * one)


def least_rho(
  p: Float[Array, "V"], q: Float[Array, "V"], count: Int[Array, ""]
) -> Float[Array, ""]:
  """Returns the least rho in [1, count] with 1 - (1 - beta)^count <= rho beta.

  At that and any larger rho k-SEQ is exact, so bisection, which keeps the upper end,
  can cost acceptance (2^-24 of it) and never exactness.
  """

  def halve(_, ends):
    low, high = ends
    middle = (low + high) / 2
    # The condition, both sides taken from 1: these differences lose no digits where p
    # and q are close.
    missed = jnp.maximum(q - p / middle, 0.0).sum()
    left = jnp.maximum(p - middle * q, 0.0).sum()
    enough = missed**count >= left
    return jnp.where(enough, low, middle), jnp.where(enough, middle, high)

  ends = (jnp.array(1.0), jnp.maximum(count, 1).astype(jnp.float32))
  return jax.lax.fori_loop(0, _BISECTIONS, halve, ends)[1]


def any_passes(beta: Float[Array, ""], count: Int[Array, ""]) -> Float[Array, ""]:
  """Returns 1 - (1 - beta)^count, with the digits that it has for a small beta."""
  beta = jnp.minimum(beta, 1.0)
  return jnp.where(count > 0, -jnp.expm1(count * jnp.log1p(-beta)), 0.0)
