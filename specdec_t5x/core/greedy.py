"""Greedy verification: the target's argmax, whatever the draft's law.

Source: Stern et al., arXiv 1811.03115, section 3 (exact match); at temperature 0 it is
algorithm 1 of Leviathan et al.
"""

import jax.numpy as jnp
from jaxtyping import Array, Float

from specdec_t5x.core import chain
from specdec_t5x.core.distributions import argmax
from specdec_t5x.core.types import Guarantee, Proposal, Verdict


class GreedyVerification:
  """Accepts each drafted x that is argmax p, until one is not."""

  guarantee = Guarantee.GREEDY_EXACT
  takes_candidates = False
  accepts_by_mass = True

  def verify(
    self,
    target_probs: Float[Array, "B K V"],
    proposal: Proposal,
    uniforms: Float[Array, "B K L"],
  ) -> Verdict:
    """Accepts a prefix; the next token is argmax p after it. No draw is used."""
    del uniforms
    best = argmax(target_probs)
    accepted = (proposal.tokens == best[:, :-1]) & chain.is_valid(proposal)
    num_accepted = chain.leading(accepted)
    next_token = jnp.take_along_axis(best, num_accepted[:, None], axis=1)[:, 0]
    return Verdict(num_accepted, next_token)
