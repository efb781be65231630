"""A draft that ends after a doubtful token; what is doubtful is learned row by row.

Shapes: B rows.
"""

import dataclasses

import flax.struct
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from specdec_t5x.core.checks import is_probability
from specdec_t5x.drafters.policies import Policy


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

  def __post_init__(self):
    for field in dataclasses.fields(self):
      value = getattr(self, field.name)
      if not is_probability(value):
        raise ValueError(
          f"ExitThreshold.{field.name} must be a number from 0 to 1, got {value!r}. "
          "Leave it out for the published one."
        )

  def first(self, rows: int) -> Exits:
    """No rate, and the threshold as set."""
    return Exits(jnp.zeros(rows), jnp.full(rows, self.threshold))

  def goes_on_after(
    self, counts: Exits, probability: Float[Array, "B"]
  ) -> Bool[Array, "B"]:
    """Where the token was as likely as the row's threshold."""
    return probability >= counts.threshold

  def learned(
    self, counts: Exits, accepted: Int[Array, "B"], drafted: Int[Array, "B"]
  ) -> Exits:
    """See the class."""
    share = accepted / jnp.maximum(drafted, 1)
    rate = self.rate_decay * counts.rate + (1 - self.rate_decay) * share
    aim = counts.threshold + jnp.where(rate <= self.goal, self.step, -self.step)
    threshold = self.decay * counts.threshold + (1 - self.decay) * aim
    learned = Exits(rate, threshold)
    return jax.tree.map(
      lambda new, old: jnp.where(drafted > 0, new, old), learned, counts
    )
