"""Verification by argmax of the target's distribution, with or without noise.

Source: Stern et al., arXiv 1811.03115, section 3 (exact match). At temperature 0 exact
match is algorithm 1 of Leviathan et al. With noise: Daliri, Musco, Suresh, arXiv
2408.07978, algorithm 3. With noise on trees: Rowan et al., arXiv 2506.05632.
"""

import dataclasses

import jax.numpy as jnp
from jaxtyping import Array, Float

from specdec_t5x.core.distributions import Sampling, argmax, race
from specdec_t5x.core.types import Guarantee, Proposal, Rule, Verdict, check_uniforms


@dataclasses.dataclass(frozen=True)
class Greedy(Rule):
  """Accepts each drafted x that equals argmax p after an accepted parent."""

  guarantee = Guarantee.GREEDY_EXACT
  takes_trees = True
  alpha_is_mass = True
  reads_probs = False

  def at(self, sampling: Sampling) -> tuple[Rule, Sampling]:
    """Returns the rule and `sampling`; raises a ValueError unless temperature is 0."""
    if not sampling.greedy:
      raise ValueError(
        f"VERIFICATION='greedy' needs TEMPERATURE=0, got {sampling.temperature}: the "
        "rule gives the target's greedy output. To sample use 'token' or 'block'."
      )
    return self, sampling

  def verify(
    self,
    target_probs: Float[Array, "B N V"],
    proposal: Proposal,
    uniforms: Float[Array, "B N L"],
  ) -> Verdict:
    """Accepts a path; the next token is argmax p after the path. Uses no uniforms."""
    del uniforms
    tree = proposal.tree
    best = argmax(target_probs)
    matches = (proposal.tokens == tree.of_parents(best)) & proposal.is_valid
    fails = jnp.pad(~matches, ((0, 0), (1, 0)))
    accepted = ~(tree.sees & fails[:, None]).any(axis=-1)
    # Siblings may have the same token. The deepest accepted node decides among them.
    last = jnp.argmax(jnp.where(accepted, tree.depths, -1), axis=1)
    next_token = jnp.take_along_axis(best, last[:, None], axis=1)[:, 0]
    return Verdict(last, next_token)


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


def rule_at(rule: Rule, sampling: Sampling) -> tuple[Rule, Sampling]:
  """Returns the rule and the settings for p that decode with `sampling` (`Rule.at`).

  At temperature 0 every exact rule becomes `Greedy`, which needs no distributions. With
  coupled draws every exact rule becomes `Coupled`.

  Raises:
    ValueError: if the rule does not support `sampling`.
  """
  if sampling.certain and rule.guarantee is Guarantee.EXACT:
    return Greedy() if sampling.greedy else Coupled(), sampling
  if sampling.coupled and not sampling.greedy:
    raise ValueError(
      f"Coupled draws need a rule that keeps the target's distribution, got "
      f"{type(rule).__name__}. Use 'coupled', or Sampling(coupled=False)."
    )
  return rule.at(sampling)
