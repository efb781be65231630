"""Lenience: accepts more tokens, within a stated bound on the distribution.

Source: Leviathan et al., ICML 2023, appendix A.5.
"""

import dataclasses

from jaxtyping import Array, Bool, Float

from specdec_t5x.core.distributions import Sampling, sample
from specdec_t5x.core.knobs import Knob, is_probability, knob
from specdec_t5x.core.rules.lossy import Approximate
from specdec_t5x.core.rules.token import (
  drafted_probs,
  leading,
  next_token_probs,
  ratio,
)
from specdec_t5x.core.types import Guarantee, Proposal, Rule, Verdict, check_uniforms


@dataclasses.dataclass(frozen=True)
class Lenient(Rule):
  """Accepts each drafted x with probability min(1, p(x) / (l q(x))).

  The output has token x with probability at most p(x) / l. The acceptance rate alpha is
  sum_x min(p(x) / l, q(x)).

  Attributes:
    lenience: l, above 0 and at most 1; 1 is token verification.
  """

  lenience: float = knob(
    1.0,
    Knob("above 0 and at most 1", lambda value: is_probability(value) and value > 0),
    macro="LENIENCE",
    fix="1 is exact; smaller values accept more and bind less.",
  )

  @property
  def guarantee(self) -> Guarantee:
    """EXACT at lenience 1, which is token verification; BOUNDED at less than 1."""
    return Guarantee.EXACT if self.lenience == 1 else Guarantee.BOUNDED

  @property
  def alpha_is_mass(self) -> bool:
    """Whether the acceptance probability is token verification's."""
    return self.lenience == 1

  def at(self, sampling: Sampling) -> tuple[Rule, Sampling]:
    """Returns the rule and `sampling`; see `core.types.Rule.at`.

    At temperature 0 returns `LenientGreedy`, which reads p at temperature 1.
    """
    if sampling.greedy:
      return LenientGreedy(self.lenience).at(sampling)
    return self, sampling

  def verify(
    self,
    target_probs: Float[Array, "B N V"],
    proposal: Proposal,
    uniforms: Float[Array, "B N L"],
  ) -> Verdict:
    """Accepts a prefix and samples the next token; see `core.types.Rule`."""
    check_uniforms(uniforms, proposal.tree.size + 1)
    p = drafted_probs(target_probs, proposal)
    q = proposal.drafted_probs()
    accepted = uniforms[:, :-1, -1] < ratio(p, self.lenience * q)
    num_accepted = leading(accepted & proposal.is_valid)
    # The paper leaves the residual open. The residual of token verification adds mass
    # only to tokens that are still below p, so no other residual stays nearer to p.
    next_probs = next_token_probs(target_probs, proposal, num_accepted)
    return Verdict(num_accepted, sample(next_probs, uniforms[:, -1]))


@dataclasses.dataclass(frozen=True)
class LenientGreedy(Approximate):
  """Lenience at temperature 0: accepts each drafted x with p(x) >= l max p.

  p is at temperature 1, as argmax's one-hot distribution leaves no room for lenience.
  The paper prints p(x) <= l max p, which contradicts the paper's measurements.

  Attributes:
    lenience: l, as in `Lenient`; 1 accepts only the likeliest token.
  """

  lenience: float

  guarantee = Guarantee.BOUNDED

  def passes(
    self, target_probs: Float[Array, "B N V"], proposal: Proposal
  ) -> Bool[Array, "B G"]:
    """Returns whether each drafted token has a share l of the largest probability."""
    p = drafted_probs(target_probs, proposal)
    return p >= self.lenience * target_probs[:, :-1].max(axis=-1)
