"""Token-by-token verification, the rule of speculative sampling.

Source: Leviathan et al., ICML 2023, algorithm 1; Chen et al., arXiv 2302.01318 (who
write q for the target and p for the draft).
"""

import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from specdec_t5x.core.distributions import residual, sample
from specdec_t5x.core.types import Guarantee, Proposal, Verdict


class TokenVerification:
  """Accepts each drafted x with probability min(1, p(x) / q(x)), until one fails."""

  guarantee = Guarantee.EXACT

  def verify(
    self,
    target_probs: Float[Array, "B K V"],
    proposal: Proposal,
    uniforms: Float[Array, "B K"],
  ) -> Verdict:
    """Accepts a prefix and samples what follows it; see `core.types.Rule`."""
    ratios = acceptance_probs(target_probs, proposal)
    # Strict, where the paper has r <= p/q: a uniform can be exactly 0, and a token
    # that the target gives no mass must not pass then.
    accepted = uniforms[:, :-1] < ratios
    num_accepted = jnp.cumprod(accepted, axis=1).sum(axis=1)
    next_probs = next_token_probs(target_probs, proposal, num_accepted)
    return Verdict(num_accepted, sample(next_probs, uniforms[:, -1]))


def acceptance_probs(
  target_probs: Float[Array, "B K V"], proposal: Proposal
) -> Float[Array, "B G"]:
  """Returns min(1, p(x) / q(x)) of each drafted token x; 0 beyond `num_valid`."""
  tokens = proposal.tokens[..., None]
  p = jnp.take_along_axis(target_probs[:, :-1], tokens, axis=-1)[..., 0]
  q = jnp.take_along_axis(proposal.draft_probs, tokens, axis=-1)[..., 0]
  # q(x) > 0 wherever x was drawn from q; entries beyond num_valid may be anything.
  ratio = jnp.where(p >= q, 1.0, p / jnp.where(q > 0, q, 1.0))
  return jnp.where(is_valid(proposal), ratio, 0.0)


def next_token_probs(
  target_probs: Float[Array, "B K V"],
  proposal: Proposal,
  num_accepted: Int[Array, "B"],
) -> Float[Array, "B V"]:
  """Returns the law of the token after the accepted prefix.

  norm(max(0, p - q)) at the first rejected position; p itself after a draft that was
  accepted whole (the bonus token).
  """
  # With q = 0 there, the residual at the position after the draft is p.
  valid = is_valid(proposal)[..., None]
  q = jnp.where(valid, proposal.draft_probs, 0.0)
  q = jnp.pad(q, ((0, 0), (0, 1), (0, 0)))
  position = num_accepted[:, None, None]
  p = jnp.take_along_axis(target_probs, position, axis=1)[:, 0]
  q = jnp.take_along_axis(q, position, axis=1)[:, 0]
  return residual(p, q)


def is_valid(proposal: Proposal):
  """Returns which of the G drafted tokens count, Bool[B, G]."""
  return jnp.arange(proposal.tokens.shape[1]) < proposal.num_valid[:, None]
