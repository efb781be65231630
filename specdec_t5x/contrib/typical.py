"""Typical acceptance: tokens that the target finds plausible pass. The rule is lossy.

Source: Cai et al. (Medusa), arXiv 2401.10774, section 2.3.2.
"""

import dataclasses

import jax.numpy as jnp
from jax.scipy.special import entr
from jaxtyping import Array, Float

from specdec_t5x.core import chain
from specdec_t5x.core.distributions import sample
from specdec_t5x.core.types import Guarantee, Proposal, Rule, Verdict, check_uniforms


@dataclasses.dataclass(frozen=True)
class Typical(Rule):
  """Accepts each drafted x with p(x) > min(epsilon, delta exp(-H(p))).

  At temperature 0 p is one-hot, and only argmax p passes.

  Attributes:
    epsilon: the highest threshold.
    delta: the scale of the threshold for p with a high entropy H.
  """

  epsilon: float = 0.09
  delta: float = 0.3

  guarantee = Guarantee.LOSSY

  def verify(
    self,
    target_probs: Float[Array, "B N V"],
    proposal: Proposal,
    uniforms: Float[Array, "B N L"],
  ) -> Verdict:
    """Accepts a prefix and samples the next token from p after the prefix."""
    check_uniforms(uniforms, proposal.tree.size + 1)
    p = chain.drafted_probs(target_probs, proposal)
    entropy = entr(target_probs[:, :-1]).sum(axis=-1)
    threshold = jnp.minimum(self.epsilon, self.delta * jnp.exp(-entropy))
    num_accepted = chain.leading((p > threshold) & proposal.is_valid)
    next_probs = chain.probs_at(target_probs, num_accepted)
    return Verdict(num_accepted, sample(next_probs, uniforms[:, -1]))
