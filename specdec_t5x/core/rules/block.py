"""Block verification: tests the draft's prefixes jointly.

In expectation block verification accepts at least as many tokens as token verification.

Source: Sun et al., arXiv 2403.10444, algorithm 2 (there M_b is the target, M_s the
draft).
"""

import dataclasses

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from specdec_t5x.core.distributions import residual, sample
from specdec_t5x.core.rules.token import drafted_probs, probs_at, ratio
from specdec_t5x.core.types import Guarantee, Proposal, Rule, Verdict, check_uniforms


@dataclasses.dataclass(frozen=True)
class Block(Rule):
  """Accepts the longest prefix x_1 .. x_i that passes a test.

  With w_0 = 1 and w_i = min(1, w_(i-1) p(x_i) / q(x_i)), prefix i passes with
  probability h_i = m_i / (m_i + 1 - w_i), where m_i = sum_x max(0, w_i p(x) - q(x)) at
  the position after the prefix (at the draft's end m_i = w_i, so h_i = w_i). The next
  token is drawn from norm(max(0, w_i p - q)).
  """

  guarantee = Guarantee.EXACT

  def verify(
    self,
    target_probs: Float[Array, "B N V"],
    proposal: Proposal,
    uniforms: Float[Array, "B N L"],
  ) -> Verdict:
    """Accepts a prefix and samples the next token; see `core.types.Rule`."""
    check_uniforms(uniforms, proposal.tree.size + 1)
    weights = prefix_weights(target_probs, proposal)
    # q at each position, zeros beyond `num_valid`; as `token.draft_probs_at`.
    draft_probs = distributions(proposal, target_probs.shape[-1])
    draft_probs = jnp.where(proposal.is_valid[..., None], draft_probs, 0.0)
    draft_probs = jnp.pad(draft_probs, ((0, 0), (0, 1), (0, 0)))
    excess = jnp.maximum(weights[..., None] * target_probs - draft_probs, 0.0)
    mass = excess.sum(axis=-1)[:, 1:]
    passes = uniforms[:, :-1, -1] < pass_probs(mass, weights[:, 1:])
    num_accepted = longest(passes & proposal.is_valid)
    p = probs_at(target_probs, num_accepted)
    weight = jnp.take_along_axis(weights, num_accepted[:, None], axis=1)
    next_probs = residual(weight * p, probs_at(draft_probs, num_accepted))
    return Verdict(num_accepted, sample(next_probs, uniforms[:, -1]))


def distributions(proposal: Proposal, vocab_size: int) -> Float[Array, "B G V"]:
  """Returns q as an array, one-hot if the tokens are certain."""
  if proposal.draft_probs is None:
    return jax.nn.one_hot(proposal.tokens, vocab_size)
  return proposal.draft_probs


def longest(passes: Bool[Array, "B G"]) -> Int[Array, "B"]:
  """Returns the length of the longest prefix that passes."""
  lengths = jnp.arange(1, passes.shape[1] + 1)
  return jnp.where(passes, lengths, 0).max(axis=1)


def prefix_weights(
  target_probs: Float[Array, "B N V"], proposal: Proposal
) -> Float[Array, "B N"]:
  """Returns w_0 .. w_G, the weights of the draft's prefixes."""
  p = drafted_probs(target_probs, proposal)
  q = proposal.drafted_probs()

  def grow(weight, probs):
    p, q = probs
    weight = ratio(weight * p, q)
    return weight, weight

  first = jnp.ones_like(p[:, 0])
  _, later = jax.lax.scan(grow, first, (p.T, q.T))
  return jnp.concatenate([first[None], later]).T


def pass_probs(
  mass: Float[Array, "*shape"], weights: Float[Array, "*shape"]
) -> Float[Array, "*shape"]:
  """Returns m / (m + 1 - w)."""
  # 0 / 0 if the weight is 1 and p = q at the next position. No mass is lost after the
  # prefix then, so a longer prefix always passes, and this prefix may pass, too.
  lost = mass + 1 - weights
  return jnp.where(lost > 0, mass / jnp.where(lost > 0, lost, 1.0), 1.0)
