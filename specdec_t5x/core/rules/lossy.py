"""Lossy acceptance: tokens that are plausible under the target, or near its own, pass.

Sources: Cai et al. (Medusa), arXiv 2401.10774, section 2.3.2 (typical acceptance);
Stern et al., arXiv 1811.03115, sections 5.1 (top k) and 5.2 (distance), at temperature
0. With k = 1 or epsilon = 0 Stern's rules are greedy verification. Otherwise no bound
limits how unlikely an accepted token may be.
"""

import abc
import dataclasses

import jax.numpy as jnp
from jax.scipy.special import entr
from jaxtyping import Array, Bool, Float

from specdec_t5x.core.distributions import Sampling, argmax, sample
from specdec_t5x.core.knobs import KnobError, knob, whole
from specdec_t5x.core.rules.token import Greedy, drafted_probs, leading, probs_at
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
    p = drafted_probs(target_probs, proposal)
    entropy = entr(target_probs[:, :-1]).sum(axis=-1)
    threshold = jnp.minimum(self.epsilon, self.delta * jnp.exp(-entropy))
    num_accepted = leading((p > threshold) & proposal.is_valid)
    next_probs = probs_at(target_probs, num_accepted)
    return Verdict(num_accepted, sample(next_probs, uniforms[:, -1]))


class Approximate(Rule):
  """Accepts the drafted tokens up to the first failure; the next token is argmax p.

  A token without mass fails. p is the target's distribution at temperature 1, because
  argmax's one-hot distribution does not rank the other tokens.
  """

  @property
  @abc.abstractmethod
  def is_greedy(self) -> bool:
    """Whether only argmax p passes, as in greedy verification."""

  @property
  def guarantee(self) -> Guarantee:
    """GREEDY_EXACT if only argmax p passes, else LOSSY."""
    return Guarantee.GREEDY_EXACT if self.is_greedy else Guarantee.LOSSY

  @abc.abstractmethod
  def passes(
    self, target_probs: Float[Array, "B N V"], proposal: Proposal
  ) -> Bool[Array, "B G"]:
    """Returns whether each drafted token is near enough to pass."""

  def at(self, sampling: Sampling) -> tuple[Rule, Sampling]:
    """Returns the rule and temperature 1 for p; see `core.types.Rule.at`.

    Returns `Greedy` and `sampling` if only argmax p passes.

    Raises:
      ValueError: if the temperature is not 0.
    """
    if not sampling.greedy:
      raise KnobError(
        "The rule {name} needs {temperature}=0, got {value}: the rule compares with "
        "the target's likeliest token. To sample use 'token' or 'block', or 'typical', "
        "another lossy rule.",
        name=type(self).__name__,
        value=sampling.temperature,
      )
    # `Greedy` compares logits, as float32 probabilities may tie if logits do not tie.
    if self.is_greedy:
      return Greedy(), sampling
    return self, Sampling(temperature=1.0)

  def verify(
    self,
    target_probs: Float[Array, "B N V"],
    proposal: Proposal,
    uniforms: Float[Array, "B N L"],
  ) -> Verdict:
    """Accepts a prefix, without uniforms; see `core.types.Rule`."""
    passes = self.passes(target_probs, proposal)
    is_possible = drafted_probs(target_probs, proposal) > 0
    num_accepted = leading(passes & is_possible & proposal.is_valid)
    return Verdict(num_accepted, argmax(probs_at(target_probs, num_accepted)))


@dataclasses.dataclass(frozen=True)
class TopK(Approximate):
  """Accepts each drafted x if fewer than k tokens are likelier than x.

  Attributes:
    k: the number of accepted ranks, at least 1; 1 is greedy verification.
  """

  k: int = knob(2, whole(1))

  @property
  def is_greedy(self) -> bool:
    """Whether k is 1."""
    return self.k == 1

  def passes(
    self, target_probs: Float[Array, "B N V"], proposal: Proposal
  ) -> Bool[Array, "B G"]:
    """Returns whether each drafted token is among the k likeliest tokens."""
    p = drafted_probs(target_probs, proposal)
    num_likelier = (target_probs[:, :-1] > p[..., None]).sum(axis=-1)
    return num_likelier < self.k


@dataclasses.dataclass(frozen=True)
class Distance(Approximate):
  """Accepts each drafted x with |x - argmax p| <= epsilon, for tokens that are numbers.

  Attributes:
    epsilon: the largest accepted distance, at least 0; 0 is greedy verification.
  """

  epsilon: int = knob(
    1, whole(0), fix="The distance is the largest difference of two tokens' ids."
  )

  @property
  def is_greedy(self) -> bool:
    """Whether epsilon is 0."""
    return self.epsilon == 0

  def passes(
    self, target_probs: Float[Array, "B N V"], proposal: Proposal
  ) -> Bool[Array, "B G"]:
    """Returns whether each drafted token is within epsilon of argmax p."""
    best = argmax(target_probs[:, :-1])
    return jnp.abs(proposal.tokens - best) <= self.epsilon
