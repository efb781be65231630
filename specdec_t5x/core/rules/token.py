"""Token-by-token verification, the rule of speculative sampling, and its greedy form.

Sources: Leviathan et al., ICML 2023, algorithm 1; Chen et al., arXiv 2302.01318 (who
write q for the target and p for the draft). At temperature 0 algorithm 1 is exact match
(Stern et al., arXiv 1811.03115, section 3).

Shapes: B batch, G drafted tokens, N = G + 1 nodes, V vocabulary, L uniforms a decision.
"""

import dataclasses

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from specdec_t5x.core.distributions import Sampling, argmax, residual, sample
from specdec_t5x.core.knobs import KnobError
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
    p = drafted_probs(target_probs, proposal)
    accepted = uniforms[:, :-1, -1] < ratio(p, proposal.drafted_probs())
    num_accepted = leading(accepted & proposal.is_valid)
    next_probs = next_token_probs(target_probs, proposal, num_accepted)
    return Verdict(num_accepted, sample(next_probs, uniforms[:, -1]))


@dataclasses.dataclass(frozen=True)
class Greedy(Rule):
  """Accepts each drafted x that equals argmax p after an accepted parent."""

  guarantee = Guarantee.GREEDY_EXACT
  takes_trees = True
  alpha_is_mass = True
  reads = "argmax"

  def at(self, sampling: Sampling) -> tuple[Rule, Sampling]:
    """Returns the rule and `sampling`; raises a ValueError unless temperature is 0."""
    if not sampling.greedy:
      raise KnobError(
        "{rule}='greedy' needs {temperature}=0, got {value}: the rule gives the "
        "target's greedy output. To sample use 'token' or 'block'.",
        value=sampling.temperature,
      )
    return self, sampling

  def verify(
    self,
    target_probs: Float[Array, "B N V"],
    proposal: Proposal,
    uniforms: Float[Array, "B N L"],
  ) -> Verdict:
    """Accepts a path; the next token is argmax p after the path. Uses no uniforms."""
    tree = proposal.tree
    best = argmax(target_probs)
    matches = (proposal.tokens == tree.of_parents(best)) & proposal.is_valid
    fails = jnp.pad(~matches, ((0, 0), (1, 0)))
    accepted = ~(tree.sees & fails[:, None]).any(axis=-1)
    # Siblings may have the same token. The deepest accepted node decides among them.
    last = jnp.argmax(jnp.where(accepted, tree.depths, -1), axis=1)
    next_token = jnp.take_along_axis(best, last[:, None], axis=1)[:, 0]
    return Verdict(last, next_token)


def next_token_probs(
  target_probs: Float[Array, "B N V"],
  proposal: Proposal,
  num_accepted: Int[Array, "B"],
) -> Float[Array, "B V"]:
  """Returns the distribution of the token after the accepted prefix.

  It is the residual at the first rejected position, and p after a full acceptance.
  """
  p = probs_at(target_probs, num_accepted)
  q = draft_probs_at(proposal, num_accepted, p.shape[-1])
  return residual(p, q)


def drafted_probs(
  target_probs: Float[Array, "B N V"], proposal: Proposal
) -> Float[Array, "B G"]:
  """Returns p(x) of each drafted token x, with p the distribution after x's parent."""
  tokens = proposal.tokens[..., None]
  distributions = proposal.tree.of_parents(target_probs)
  return jnp.take_along_axis(distributions, tokens, axis=-1)[..., 0]


def ratio(p: Float[Array, "*shape"], q: Float[Array, "*shape"]):
  """Returns the acceptance probability min(1, p / q); 0 if p = 0, for any q."""
  return jnp.where((p >= q) & (p > 0), 1.0, p / jnp.where(q > 0, q, 1.0))


def leading(accepted: Bool[Array, "B G"]) -> Int[Array, "B"]:
  """Returns the number of tokens before the first rejected token."""
  return jnp.cumprod(accepted, axis=1).sum(axis=1)


def probs_at(
  probs: Float[Array, "B N V"], position: Int[Array, "B"]
) -> Float[Array, "B V"]:
  """Returns each row's distribution at the row's `position`."""
  return jnp.take_along_axis(probs, position[:, None, None], axis=1)[:, 0]


def draft_probs_at(
  proposal: Proposal, position: Int[Array, "B"], vocab_size: int
) -> Float[Array, "B V"]:
  """Returns each row's q at the row's `position`, and zeros beyond `num_valid`.

  With q = 0 the residual is p, so the bonus token needs no special case.
  """
  place = jnp.minimum(position, proposal.tokens.shape[1] - 1)
  if proposal.draft_probs is None:
    token = jnp.take_along_axis(proposal.tokens, place[:, None], axis=1)[:, 0]
    q = jax.nn.one_hot(token, vocab_size)
  else:
    q = probs_at(proposal.draft_probs, place)
  return jnp.where((position < proposal.num_valid)[:, None], q, 0.0)
