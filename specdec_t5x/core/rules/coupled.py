"""Verification by the argmax of the target's distribution with noise.

Source: Daliri, Musco, Suresh, arXiv 2408.07978, algorithm 3. On trees: Rowan et al.,
arXiv 2506.05632.
"""

import dataclasses

import jax.numpy as jnp
from jaxtyping import Array, Float

from specdec_t5x.core.distributions import Sampling
from specdec_t5x.core.noise import race
from specdec_t5x.core.rules.token import Greedy
from specdec_t5x.core.types import Guarantee, Proposal, Rule, Verdict, check_uniforms


@dataclasses.dataclass(frozen=True)
class Coupled(Rule):
  """Accepts each drafted x that the target draws with the noise of the same position.

  The output equals plain sampling with the same noise, token for token, for any draft.
  A draft that takes the argmax with the same noise mostly drafts the target's token.
  """

  guarantee = Guarantee.EXACT
  takes_trees = True

  def at(self, sampling: Sampling) -> tuple[Rule, Sampling]:
    """Returns the rule, and `sampling` with coupled draws."""
    return self, dataclasses.replace(sampling, coupled=True)

  def verify(
    self,
    target_probs: Float[Array, "B N V"],
    proposal: Proposal,
    uniforms: Float[Array, "B N L"],
  ) -> Verdict:
    """Accepts a path; see `core.types.Rule`. `uniforms` are indexed by depth."""
    check_uniforms(uniforms, proposal.tree.size + 1)
    depths = jnp.broadcast_to(proposal.tree.depths, uniforms.shape[:2])
    node_uniforms = jnp.take_along_axis(uniforms, depths[..., None], axis=1)
    return Greedy().verify(race(target_probs, node_uniforms), proposal, uniforms)
