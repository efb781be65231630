"""The policy that goes by measured times: it drafts as many tokens as pay.

Shapes: B rows, N lengths.
"""

import dataclasses
import itertools
from collections.abc import Sequence

import flax.struct
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from specdec_t5x.core.checks import is_finite, is_probability
from specdec_t5x.decoding.policy import Policy
from specdec_t5x.decoding.state import StepInfo

# What drafts must be expected to gain to be tried. Costs are of iterations alone: a
# program that drafts also takes longer to trace, and reads each input with the draft,
# too; and most drafts are right less often than the prior has it.
_WORTH = 1.2


@flax.struct.dataclass
class Counts:
  """What came of a row's drafts so far; old ones count for less.

  Attributes:
    accepted: drafted tokens that stood.
    tried: those and, of each draft, the first that did not stand.
  """

  accepted: Float[Array, "B"]
  tried: Float[Array, "B"]


@dataclasses.dataclass(frozen=True)
class CostAware(Policy):
  """Drafts as many tokens as pay; often none.

  The length n maximises tokens over time,

    (1 + alpha + ... + alpha^n) / seconds[n],

  over the lengths that the drafter has: Theorem 3.8 of Leviathan et al. with measured
  times, n = 0 included. Alpha is estimated as

    (prior_alpha prior_weight + accepted) / (prior_weight + tried),

  of the batch and of what its rows decoded before. Where no length is expected to gain
  a fifth at `prior_alpha`, nothing is ever drafted.

  Attributes:
    seconds: of an iteration with a draft of each length, the first without a draft;
      empty where the times are to be measured before the decode (`specdec_t5x.tuning`).
    prior_alpha: the estimate before the first draft.
    prior_weight: how many tried tokens the prior counts for.
    decay: factor of old counts with each iteration, so that drafts are tried again.
    by_row: whether each row has a length of its own, by its own drafts alone; else all
      rows have the one that is best for the batch.
  """

  seconds: Sequence[float] = ()
  # Little and light: outputs may end before a better guess would have been unlearned.
  prior_alpha: float = 0.75
  prior_weight: float = 2.0
  decay: float = 0.98
  by_row: bool = False

  def __post_init__(self):
    # A list, as gin gives, would make the policy unhashable.
    object.__setattr__(self, "seconds", tuple(self.seconds))
    if not all(is_finite(each) and each > 0 for each in self.seconds):
      raise ValueError(f"CostAware.seconds must be above 0, got {self.seconds}.")
    shares = is_probability(self.prior_alpha) and is_probability(self.decay)
    if not (shares and is_finite(self.prior_weight) and self.prior_weight > 0):
      raise ValueError(
        "CostAware needs a prior_alpha and a decay from 0 to 1 and a prior_weight "
        f"above 0, got {self.prior_alpha}, {self.decay} and {self.prior_weight}."
      )

  @property
  def may_rest(self) -> bool:
    """Whether times are known: without any the longest draft is made."""
    return bool(self.seconds)

  def check(self, lengths: tuple[int, ...]) -> None:
    """Raises a ValueError where there is not one time for each length."""
    if self.seconds and len(self.seconds) != len(lengths):
      raise ValueError(
        f"CostAware.seconds needs {len(lengths)} times, of drafts of {lengths} tokens, "
        f"got {len(self.seconds)}. Leave them out, and they are measured."
      )

  def start(self, rows: int) -> Counts:
    """Returns counts of 0: no draft was tried."""
    return Counts(jnp.zeros(rows), jnp.zeros(rows))

  def most(self, known: Counts, rows: int, lengths: tuple[int, ...]) -> Int[Array, "B"]:
    """Returns the best length; the longest where nothing was measured."""
    if not self.seconds:
      return super().most(known, rows, lengths)
    accepted, tried = known.accepted, known.tried
    if not self.by_row:
      accepted = accepted.sum(keepdims=True)
      tried = tried.sum(keepdims=True)
    accepted = self.prior_alpha * self.prior_weight + accepted
    alpha = accepted / (self.prior_weight + tried)
    best = best_length(alpha, jnp.array(self.seconds), lengths)
    return jnp.broadcast_to(best, rows)

  def learn(self, known: Counts, info: StepInfo) -> Counts:
    """Adds what the iteration accepted and tried, old counts decayed."""
    return Counts(
      self.decay * known.accepted + info.accepted,
      self.decay * known.tried + info.acceptance_positions,
    )

  def refilled(self, fresh: Counts, known: Counts) -> Counts:
    """Returns the old counts, for one text is like the next; by rows, new ones."""
    return fresh if self.by_row else known

  def pays(self, lengths: tuple[int, ...]) -> bool:
    """Returns whether drafts are worth a try; what is never tried teaches nothing."""
    return not self.seconds or self.speedup(self.prior_alpha, lengths) > _WORTH

  def speedup(self, alpha: float, lengths: tuple[int, ...]) -> float:
    """Returns how much faster than plain decoding the best draft of some tokens is."""
    tokens = list(itertools.accumulate(alpha**n for n in range(lengths[-1] + 1)))
    return max(
      tokens[n] * self.seconds[0] / seconds
      for n, seconds in zip(lengths[1:], self.seconds[1:], strict=True)
    )

  def outlook(self, lengths: tuple[int, ...]) -> str:
    """Returns what drafting promises on this device at this batch, in a line.

    >>> CostAware((1.0, 1.4, 1.8)).outlook((0, 1, 2))
    'Drafts pay from an acceptance rate (alpha) of 0.41 on; 0.75 gives 1.28 times.'
    >>> print(CostAware((1.0, 1.9, 2.9)).outlook((0, 1, 2)))
    Decoding plainly: with drafts, at an acceptance rate (alpha) of 0.75, it would be \
0.92 times as fast, and drafts pay from 1.2 times on.
    """
    expected = self.speedup(self.prior_alpha, lengths)
    if not self.pays(lengths):
      return (
        f"Decoding plainly: with drafts, at an acceptance rate (alpha) of "
        f"{self.prior_alpha:.2g}, it would be {expected:.2f} times as fast, and drafts "
        f"pay from {_WORTH} times on."
      )
    alphas = [i / 100 for i in range(1, 100)]
    first = next(alpha for alpha in alphas if self.speedup(alpha, lengths) > 1)
    return (
      f"Drafts pay from an acceptance rate (alpha) of {first:.2f} on; "
      f"{self.prior_alpha:.2g} gives {expected:.2f} times."
    )


def best_length(
  alpha: Float[Array, "*B"], seconds: Float[Array, "N"], lengths: tuple[int, ...]
) -> Int[Array, "*B"]:
  """Returns the length of most tokens over time; see `CostAware`."""
  powers = alpha[..., None] ** jnp.arange(lengths[-1] + 1)
  tokens = jnp.cumsum(powers, axis=-1)[..., np.array(lengths)]
  best = jnp.argmax(tokens / seconds, axis=-1)
  return jnp.array(lengths, jnp.int32)[best]
