"""How many tokens each row drafts next: the policies, beside the drafter.

Each knows a row's past and how sure the draft is before a draw, and keeps the guarantee
of every rule (`decoding.policy`, docs/math.md).

Shapes: B rows.
"""

import dataclasses

import flax.struct
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from specdec_t5x.core.checks import is_probability
from specdec_t5x.decoding.budget import Budget
from specdec_t5x.decoding.cost_aware import CostAware
from specdec_t5x.decoding.policy import Fixed, Policy
from specdec_t5x.decoding.state import StepInfo


@dataclasses.dataclass(frozen=True)
class Confidence(Policy):
  """Stops where the draft model is not sure what comes next.

  Source: Zhang et al. (Draft & Verify), arXiv 2309.08168, who also adapt the
  threshold; here it is fixed. They read the drawn token's probability; here it is the
  likeliest token's, the same at temperature 0, which is known before the draw: a token
  that is dropped for its own value would bend the distribution. Heads that learned how
  likely their tokens are to be accepted say that instead.

  Attributes:
    threshold: a token is drafted where what the draft says is at least this.
  """

  threshold: float = 0.4

  asks = True

  def __post_init__(self):
    if not is_probability(self.threshold):
      raise ValueError(
        f"CONFIDENCE must be between 0 and 1, got {self.threshold!r}. It is a "
        "probability: 0 always drafts GAMMA tokens, 1 drafts certain ones alone."
      )

  def goes_on(self, known: None, confidence: Float[Array, "B"]) -> Bool[Array, "B"]:
    """Where the draft is as sure as the threshold."""
    del known
    return confidence >= self.threshold


@flax.struct.dataclass
class Exits:
  """Where each row stops, and how well its drafts did.

  Attributes:
    rate: a moving mean of the share of a draft that was accepted.
    threshold: the probability below which a drafted token is the draft's last.
  """

  rate: Float[Array, "B"]
  threshold: Float[Array, "B"]


@dataclasses.dataclass(frozen=True)
class ExitThreshold(Policy):
  """Stops after a token that the draft was not sure of; how sure is learned by row.

  After a draft of n tokens, m of which stood, the row's rate r and threshold t are

    r <- rate_decay r + (1 - rate_decay) m / n
    t <- decay t + (1 - decay) (t + step where r <= goal, else t - step)

  with r = 0 at first. Source: Zhang et al. (Draft & Verify), arXiv 2309.08168, adaptive
  draft-exiting, with the constants of their code (which, unlike the paper, leaves t
  alone after a whole draft of gamma tokens). The doubtful token is kept, as theirs is:
  whether the next one counts is then settled before it is drawn (docs/math.md).

  Attributes:
    threshold: t at first.
    goal: the rate that is aimed at.
    step: what the threshold aims above or below itself by.
    rate_decay: the share of a rate that is kept.
    decay: the share of a threshold that is kept.
  """

  threshold: float = 0.8
  goal: float = 0.9
  step: float = 0.01
  rate_decay: float = 0.5
  decay: float = 0.9

  asks = True

  def __post_init__(self):
    for field in dataclasses.fields(self):
      value = getattr(self, field.name)
      if not (field.kw_only or is_probability(value)):
        raise ValueError(
          f"ExitThreshold.{field.name} must be a number from 0 to 1, got {value!r}. "
          "Leave it out for the published one."
        )

  def start(self, rows: int) -> Exits:
    """No rate, and the threshold as set."""
    return Exits(jnp.zeros(rows), jnp.full(rows, self.threshold))

  def goes_on_after(
    self, known: Exits, probability: Float[Array, "B"]
  ) -> Bool[Array, "B"]:
    """Where the token was as likely as the row's threshold."""
    return probability >= known.threshold

  def learn(self, known: Exits, info: StepInfo) -> Exits:
    """Moves rate and threshold of the rows that drafted, by the formulas above."""
    share = info.accepted / jnp.maximum(info.drafted, 1)
    rate = self.rate_decay * known.rate + (1 - self.rate_decay) * share
    aim = known.threshold + jnp.where(rate <= self.goal, self.step, -self.step)
    threshold = self.decay * known.threshold + (1 - self.decay) * aim
    learned = Exits(rate, threshold)
    return jax.tree.map(
      lambda new, old: jnp.where(info.drafted > 0, new, old), learned, known
    )


POLICIES: dict[str, Policy] = {
  "auto": CostAware(),
  "budget": Budget(),
  "confidence": Confidence(),
  "exit": ExitThreshold(),
  "fixed": Fixed(),
}


def get_policy(policy: Policy | str) -> Policy:
  """Returns a policy: as it is, or the one of that name.

  Raises:
    ValueError: where there is none of that name.
  """
  if isinstance(policy, Policy):
    return policy
  if policy not in POLICIES:
    raise ValueError(
      f"Unknown GAMMA_POLICY {policy!r}; expected one of {sorted(POLICIES)} or a "
      "Policy."
    )
  return POLICIES[policy]
