"""Token-by-token verification, the rule of speculative sampling.

Source: Leviathan et al., ICML 2023, algorithm 1; Chen et al., arXiv 2302.01318 (who
write q for the target and p for the draft).
"""

import dataclasses

import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from specdec_t5x.core import chain
from specdec_t5x.core.distributions import residual, sample
from specdec_t5x.core.types import Guarantee, Proposal, Rule, Verdict, check_uniforms


@dataclasses.dataclass(frozen=True)
class Token(Rule):
  """Accepts each drafted x with probability min(1, p(x) / q(x)), up to a rejection."""

  guarantee = Guarantee.EXACT
  alpha_is_mass = True

  def verify(
    self,
    target_probs: Float[Array, "B N V"],
    proposal: Proposal,
    uniforms: Float[Array, "B N L"],
  ) -> Verdict:
    """Accepts a prefix and samples the next token; see `core.types.Rule`."""
    check_uniforms(uniforms, proposal.tree.size + 1)
    # The paper has r <= p/q. The comparison is strict here, because a uniform can be
    # exactly 0, and a token without mass under the target must not pass.
    accepted = uniforms[:, :-1, -1] < acceptance_probs(target_probs, proposal)
    num_accepted = chain.leading(accepted)
    next_probs = next_token_probs(target_probs, proposal, num_accepted)
    return Verdict(num_accepted, sample(next_probs, uniforms[:, -1]))


def acceptance_probs(
  target_probs: Float[Array, "B N V"], proposal: Proposal
) -> Float[Array, "B G"]:
  """Returns min(1, p(x) / q(x)) of each drafted token x; 0 beyond `num_valid`."""
  p = chain.drafted_probs(target_probs, proposal)
  return jnp.where(proposal.is_valid, chain.ratio(p, proposal.drafted_probs()), 0.0)


def next_token_probs(
  target_probs: Float[Array, "B N V"],
  proposal: Proposal,
  num_accepted: Int[Array, "B"],
) -> Float[Array, "B V"]:
  """Returns the distribution of the token after the accepted prefix.

  The distribution is norm(max(0, p - q)) at the first rejected position, and p after a
  fully accepted draft (the bonus token).
  """
  p = chain.probs_at(target_probs, num_accepted)
  q = chain.draft_probs_at(proposal, num_accepted, p.shape[-1])
  return residual(p, q)
