"""Approximate acceptance at temperature 0: what is nearly the target's token passes.

Source: Stern et al., arXiv 1811.03115, sections 5.1 (top k) and 5.2 (distance). With
k = 1 and epsilon = 0 both are greedy verification. Else neither is lossless; nothing
bounds how unlikely a token among the first k is, nor one that is near in number.
"""

import abc
import dataclasses

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from specdec_t5x.core import chain
from specdec_t5x.core.distributions import Sampling, argmax
from specdec_t5x.core.greedy import Greedy
from specdec_t5x.core.knobs import knob, whole
from specdec_t5x.core.types import Guarantee, Proposal, Rule, Verdict


class Approximate(Rule):
  """Accepts the first drafted tokens that pass, none without mass; then argmax p.

  p is the target's distribution at temperature 1: argmax's own has no second token.
  """

  @property
  @abc.abstractmethod
  def is_greedy(self) -> bool:
    """Whether argmax p alone passes, as in greedy verification."""

  @property
  def guarantee(self) -> Guarantee:
    """GREEDY_EXACT where argmax p alone passes, else LOSSY."""
    return Guarantee.GREEDY_EXACT if self.is_greedy else Guarantee.LOSSY

  @abc.abstractmethod
  def passes(
    self, target_probs: Float[Array, "B N V"], proposal: Proposal
  ) -> Bool[Array, "B G"]:
    """Returns which drafted tokens are near enough."""

  def at(self, sampling: Sampling) -> tuple[Rule, Sampling]:
    """Returns what decides at temperature 0; sampling is a ValueError."""
    if not sampling.greedy:
      raise ValueError(
        f"The rule {type(self).__name__} needs TEMPERATURE=0, got "
        f"{sampling.temperature}: it compares with the target's likeliest token. To "
        "sample use 'token', 'block', or 'typical', which is lossy, too."
      )
    # Probabilities in float32 may tie where logits don't: `Greedy` compares logits.
    if self.is_greedy:
      return Greedy(), sampling
    return self, Sampling(temperature=1.0)

  def verify(
    self,
    target_probs: Float[Array, "B N V"],
    proposal: Proposal,
    uniforms: Float[Array, "B N L"],
  ) -> Verdict:
    """Accepts a prefix; see `core.types.Rule`. No draw is used."""
    del uniforms
    passes = self.passes(target_probs, proposal)
    is_possible = chain.drafted_probs(target_probs, proposal) > 0
    return chain.greedy_prefix(target_probs, proposal, passes & is_possible)


@dataclasses.dataclass(frozen=True)
class TopK(Approximate):
  """Accepts each drafted x that fewer than k tokens are likelier than.

  Attributes:
    k: at least 1, which is greedy verification.
  """

  k: int = knob(2, whole(1), "accepted ranks; 1 is greedy verification")

  @property
  def is_greedy(self) -> bool:
    """Whether k is 1."""
    return self.k == 1

  def passes(
    self, target_probs: Float[Array, "B N V"], proposal: Proposal
  ) -> Bool[Array, "B G"]:
    """Returns which drafted tokens are among the first k."""
    p = chain.drafted_probs(target_probs, proposal)
    likelier = (target_probs[:, :-1] > p[..., None]).sum(axis=-1)
    return likelier < self.k


@dataclasses.dataclass(frozen=True)
class Distance(Approximate):
  """Accepts each drafted x with |x - argmax p| <= epsilon, for tokens that are numbers.

  Attributes:
    epsilon: at least 0, which is greedy verification.
  """

  epsilon: int = knob(
    1,
    whole(0),
    "accepted distance of two tokens' ids; 0 is greedy verification",
    fix="It is how far apart two tokens' ids may be.",
  )

  @property
  def is_greedy(self) -> bool:
    """Whether epsilon is 0."""
    return self.epsilon == 0

  def passes(
    self, target_probs: Float[Array, "B N V"], proposal: Proposal
  ) -> Bool[Array, "B G"]:
    """Returns which drafted tokens are near."""
    best = argmax(target_probs[:, :-1])
    return jnp.abs(proposal.tokens - best) <= self.epsilon
