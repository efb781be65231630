"""Greedy verification: the target's argmax, whatever the draft's distribution.

Source: Stern et al., arXiv 1811.03115, section 3 (exact match); at temperature 0 it is
algorithm 1 of Leviathan et al.
"""

import dataclasses

import jax.numpy as jnp
from jaxtyping import Array, Float

from specdec_t5x.core.distributions import Sampling, argmax
from specdec_t5x.core.types import Guarantee, Proposal, Rule, Verdict


@dataclasses.dataclass(frozen=True)
class Greedy(Rule):
  """Accepts each drafted x that is argmax p after an accepted parent."""

  guarantee = Guarantee.GREEDY_EXACT
  takes_trees = True
  alpha_is_mass = True
  reads_probs = False

  def at(self, sampling: Sampling) -> tuple[Rule, Sampling]:
    """Returns the rule itself at temperature 0; sampling is a ValueError."""
    if not sampling.greedy:
      raise ValueError(
        f"VERIFICATION='greedy' needs TEMPERATURE=0, got {sampling.temperature}: it "
        "gives the target's greedy output. To sample use 'token' or 'block'."
      )
    return self, sampling

  def verify(
    self,
    target_probs: Float[Array, "B N V"],
    proposal: Proposal,
    uniforms: Float[Array, "B N L"],
  ) -> Verdict:
    """Accepts a path; the next token is argmax p after it. No draw is used."""
    del uniforms
    best, tree = argmax(target_probs), proposal.tree
    matches = (proposal.tokens == tree.of_parents(best)) & proposal.is_valid
    fails = jnp.pad(~matches, ((0, 0), (1, 0)))
    accepted = ~(tree.sees & fails[:, None]).any(axis=-1)
    # Of siblings that are the same token the one whose children go on.
    last = jnp.argmax(jnp.where(accepted, tree.depths, -1), axis=1)
    next_token = jnp.take_along_axis(best, last[:, None], axis=1)[:, 0]
    return Verdict(last, next_token)


def rule_at(rule: Rule, sampling: Sampling) -> tuple[Rule, Sampling]:
  """Returns what decides under `sampling`, and the adjustment of p that it reads.

  At temperature 0 all that give the target's distribution are greedy verification,
  which needs no distributions.

  Raises:
    ValueError: where the rule does not go with this way of sampling.
  """
  if sampling.greedy and rule.guarantee is Guarantee.EXACT:
    return Greedy(), sampling
  return rule.at(sampling)
