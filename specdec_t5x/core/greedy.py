"""Verification by argmax: of the target's distribution, or of what noise makes of it.

Source: Stern et al., arXiv 1811.03115, section 3 (exact match); at temperature 0 it is
algorithm 1 of Leviathan et al. With noise: Daliri, Musco, Suresh, arXiv 2408.07978,
algorithm 3; on trees Rowan et al., arXiv 2506.05632.
"""

import dataclasses

import jax.numpy as jnp
from jaxtyping import Array, Float

from specdec_t5x.core.checks import check_uniforms
from specdec_t5x.core.distributions import Sampling, argmax
from specdec_t5x.core.noise import race
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


@dataclasses.dataclass(frozen=True)
class Coupled(Rule):
  """Accepts each drafted x that is the target's own draw by the noise of its place.

  So the output is plain sampling's with that noise, token for token, whatever is
  drafted. A draft that takes the argmax with the same noise mostly drafts that token.
  """

  guarantee = Guarantee.EXACT
  takes_trees = True

  def at(self, sampling: Sampling) -> tuple[Rule, Sampling]:
    """Returns the rule itself, and that draws are coupled."""
    return self, dataclasses.replace(sampling, coupled=True)

  def verify(
    self,
    target_probs: Float[Array, "B N V"],
    proposal: Proposal,
    uniforms: Float[Array, "B N L"],
  ) -> Verdict:
    """Accepts a path; see `core.types.Rule`. Uniforms are of places, not of nodes."""
    check_uniforms(uniforms, proposal.tree.size + 1)
    depths = jnp.broadcast_to(proposal.tree.depths, uniforms.shape[:2])
    of_nodes = jnp.take_along_axis(uniforms, depths[..., None], axis=1)
    return Greedy().verify(race(target_probs, of_nodes), proposal, uniforms)


def rule_at(rule: Rule, sampling: Sampling) -> tuple[Rule, Sampling]:
  """Returns what decides under `sampling`, and the adjustment of p that it reads.

  At temperature 0 all that give the target's distribution are greedy verification,
  which needs no distributions; where draws are coupled they are `Coupled`.

  Raises:
    ValueError: where the rule does not go with this way of sampling.
  """
  if sampling.certain and rule.guarantee is Guarantee.EXACT:
    return Greedy() if sampling.greedy else Coupled(), sampling
  if sampling.coupled and not sampling.greedy:
    raise ValueError(
      f"Coupled draws need a rule that keeps the target's distribution, got "
      f"{type(rule).__name__}. Use 'coupled', or Sampling(coupled=False)."
    )
  return rule.at(sampling)
