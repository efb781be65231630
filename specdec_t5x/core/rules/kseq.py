"""k-SEQ: accepts the first of several independent draws that passes a laxer test.

Source: Sun et al. (SpecTr), NeurIPS 2023, arXiv 2310.15141, algorithm 2 and section 4
(there p is the draft, q the target).
Shapes: B batch, G drafted nodes, N = G + 1, V vocabulary.
"""

import dataclasses

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from specdec_t5x.core.distributions import residual
from specdec_t5x.core.rules.block import distributions
from specdec_t5x.core.rules.token import ratio
from specdec_t5x.core.rules.traversal import verify_rows
from specdec_t5x.core.types import Guarantee, Proposal, Rule, Verdict

# Bisections of the interval of k-SEQ's rho. The upper end is exact after any number.
_BISECTIONS = 24


@dataclasses.dataclass(frozen=True)
class KSeq(Rule):
  """Accepts the first of k draws that passes, with chance min(1, p(x) / (rho q(x))).

  A single draw passes with probability beta = sum_x min(q(x), p(x) / rho). At least one
  of k draws passes with probability 1 - (1 - beta)^k. rho is the least value for which
  the target's mass suffices: 1 - (1 - beta)^k = rho beta.
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
    """Accepts a path and samples the next token; see `core.types.Rule`."""
    draft_probs = distributions(proposal, target_probs.shape[-1])
    proposal = proposal.replace(draft_probs=draft_probs)
    return verify_rows(_walk, target_probs, proposal, uniforms)


def _walk(target_probs, draft_probs, parents, tokens, draws, is_valid):
  """Returns the accepted node of one row, and the next token's distribution."""

  def test_children(carry):
    # `current` marks the nodes that spell the accepted tokens. Given the accepted
    # tokens, the children's tokens are independent draws from a single q.
    current, _, last, _ = carry
    present = is_valid & current[parents]
    p = target_probs[last]
    q = draft_probs[jnp.argmax(present)]
    passes, next_probs = choose(p, q, tokens, present, draws)
    is_accepted = passes.any()
    first = jnp.argmax(passes)
    same_token = jnp.pad(present & (tokens == tokens[first]), (1, 0))
    current = jnp.where(is_accepted, same_token, current)
    last = jnp.where(is_accepted, first + 1, last)
    return current, is_accepted, last, next_probs

  is_root = jnp.arange(tokens.size + 1) == 0
  start = is_root, jnp.array(True), jnp.array(0), target_probs[0]
  _, _, last, next_probs = jax.lax.while_loop(
    lambda carry: carry[1], test_children, start
  )
  return last, next_probs


def choose(
  p: Float[Array, "V"],
  q: Float[Array, "V"],
  tokens: Int[Array, "G"],
  present: Bool[Array, "G"],
  uniforms: Float[Array, "G"],
) -> tuple[Bool[Array, "G"], Float[Array, "V"]]:
  """Tests the tokens of present nodes, which are independent draws from q.

  Returns:
    Whether each node passes (the first passing node is accepted), and the distribution
    of the recovered token if no node passes; p if no node is present.
  """
  count = present.sum()
  rho = least_rho(p, q, count)
  single_mass = jnp.minimum(q, p / rho)
  passes = present & (uniforms < ratio(p[tokens], rho * q[tokens]))
  beta = single_mass.sum()
  # 1 - (1 - beta)^count, accurate for a small beta.
  any_passes = -jnp.expm1(count * jnp.log1p(-jnp.minimum(beta, 1.0)))
  any_passes = jnp.where(count > 0, any_passes, 0.0)
  # The accepted token has the distribution any_passes / beta * single_mass, which has
  # no mass if beta is 0.
  share = any_passes / jnp.where(beta > 0, beta, 1.0)
  return passes, residual(p, share * single_mass)


def least_rho(
  p: Float[Array, "V"], q: Float[Array, "V"], count: Int[Array, ""]
) -> Float[Array, ""]:
  """Returns the least rho in [1, count] with 1 - (1 - beta)^count <= rho beta.

  k-SEQ is exact at the least rho and at any larger rho. Bisection keeps the upper end,
  so the error can cost acceptance (a part of 2^-24), but never exactness.
  """

  def halve(_, ends):
    low, high = ends
    middle = (low + high) / 2
    # Compares 1 - beta and 1 - rho beta as sums of differences, which lose no digits if
    # p and q are close.
    rejected = jnp.maximum(q - p / middle, 0.0).sum()
    remaining = jnp.maximum(p - middle * q, 0.0).sum()
    is_enough = rejected**count >= remaining
    low = jnp.where(is_enough, low, middle)
    high = jnp.where(is_enough, middle, high)
    return low, high

  ends = jnp.array(1.0), jnp.maximum(count, 1).astype(jnp.float32)
  _, high = jax.lax.fori_loop(0, _BISECTIONS, halve, ends)
  return high
