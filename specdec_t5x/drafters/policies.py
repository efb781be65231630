"""How long the next draft of a row shall be: policies of `drafters.adaptive`.

A policy sees what a row's earlier iterations came to and, before each token is drawn,
how sure the draft is of it; never another row, and never the token that it decides
about. Whatever else it does, the output keeps its law (docs/math.md).

Shapes: B rows.
"""

import dataclasses
import itertools
from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import flax.struct
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from specdec_t5x.core.checks import is_finite, is_probability
from specdec_t5x.decoding import timing
from specdec_t5x.decoding.widths import block_widths

# What drafts must be expected to gain to be tried: times drift with what else uses the
# memory, and a batch that rests still reads its inputs with the draft.
_WORTH = 1.1


@flax.struct.dataclass
class Counts:
  """What came of a row's drafts so far; the policy weighs old and new.

  Attributes:
    accepted: drafted tokens that stood.
    tried: those and, of each draft, the first that did not stand.
  """

  accepted: Float[Array, "B"]
  tried: Float[Array, "B"]

  @classmethod
  def none(cls, rows: int) -> "Counts":
    """Returns the counts before the first draft."""
    return cls(jnp.zeros(rows), jnp.zeros(rows))


class Policy:
  """Decides when a row stops drafting; unless it says otherwise, at gamma tokens.

  Attributes:
    may_draft_nothing: whether `most` may be 0 in rows that have room.
  """

  may_draft_nothing: ClassVar[bool] = False

  def check(self, gamma: int) -> None:
    """Raises a ValueError where the policy does not go with drafts of up to gamma."""
    del gamma

  def first(self, rows: int) -> Any:
    """Returns what is known of each row before its first draft: by default `Counts`."""
    return Counts.none(rows)

  def most(self, counts: Any, gamma: int) -> Int[Array, "B"]:
    """Returns how many tokens, of at most gamma, each row's next draft may have."""
    return jnp.full(jax.tree.leaves(counts)[0].shape, gamma, jnp.int32)

  def goes_on(self, confidence: Float[Array, "B"]) -> Bool[Array, "B"]:
    """Returns which rows draft a token whose likeliest value has this probability."""
    return jnp.ones(confidence.shape, bool)

  def goes_on_after(
    self, counts: Any, probability: Float[Array, "B"]
  ) -> Bool[Array, "B"]:
    """Returns which rows draft another token after one that had this probability.

    It is of the drafted token, at temperature 1. The token itself counts either way.
    """
    del counts
    return jnp.ones(probability.shape, bool)

  def learned(
    self, counts: Any, accepted: Int[Array, "B"], drafted: Int[Array, "B"]
  ) -> Any:
    """Returns the counts after one more draft, and how many of its tokens stood."""
    del accepted, drafted
    return counts

  def refilled(self, counts: Any, before: Any) -> Any:
    """Returns the counts once rows that ended have other inputs: by default anew.

    Args:
      counts: those before the first draft in such rows, in the others as they were.
      before: as they were.
    """
    del before
    return counts

  def tuned(self, time: Callable[[], Sequence[float]]) -> "Policy | None":
    """Returns the policy for this device, None where it would never draft.

    Args:
      time: measures the seconds of an iteration that drafts 0, 1, .. gamma tokens.
    """
    del time
    return self


@dataclasses.dataclass(frozen=True)
class Whole(Policy):
  """Always drafts gamma tokens."""


@dataclasses.dataclass(frozen=True)
class Always(Policy):
  """Drafts a number of tokens, the same for all rows, that may be known late.

  Attributes:
    length: how many; a number or, in a program that times them all, an argument of it.
  """

  length: int | Int[Array, ""]

  may_draft_nothing = True

  def most(self, counts: Counts, gamma: int) -> Int[Array, "B"]:
    """So many."""
    return jnp.full(counts.tried.shape, self.length, jnp.int32)


@dataclasses.dataclass(frozen=True)
class Auto(Policy):
  """Drafts what is best for the batch, by what iterations take on this device.

  All rows draft the number n of tokens that maximises tokens over time,
  (1 + alpha + ... + alpha^n) / seconds[n]; for none the draft does not run.
  Alpha is estimated over the batch, and over what its rows decoded before, as
  (prior_alpha prior_weight + accepted) / (prior_weight + tried).

  Attributes:
    seconds: of an iteration that drafts 0, 1, .. gamma tokens in every row; none where
      they are to be measured before the decode.
    prior_alpha: the estimate before the first draft.
    prior_weight: how many tried tokens the prior counts for.
    decay: factor of old counts with each iteration, so that drafts are tried again.
  """

  seconds: Sequence[float] = ()
  # Little and light: outputs may end before a better guess would have been unlearned.
  prior_alpha: float = 0.75
  prior_weight: float = 2.0
  decay: float = 0.98

  may_draft_nothing = True

  def __post_init__(self):
    object.__setattr__(self, "seconds", tuple(self.seconds))
    if not all(is_finite(each) and each > 0 for each in self.seconds):
      raise ValueError(f"Auto.seconds must be above 0, got {self.seconds}.")
    shares = is_probability(self.prior_alpha) and is_probability(self.decay)
    if not (shares and is_finite(self.prior_weight) and self.prior_weight > 0):
      raise ValueError(
        "Auto needs a prior_alpha and a decay from 0 to 1 and a prior_weight above 0, "
        f"got {self.prior_alpha}, {self.decay} and {self.prior_weight}."
      )

  def check(self, gamma: int) -> None:
    """Raises a ValueError where there is not one time for each length of a draft."""
    if self.seconds and len(self.seconds) != gamma + 1:
      raise ValueError(
        f"Auto.seconds needs {gamma + 1} times, of drafts of 0 to GAMMA={gamma} "
        f"tokens, got {len(self.seconds)}. Leave them out, and they are measured."
      )

  def tuned(self, time: Callable[[], Sequence[float]]) -> "Auto | None":
    """Returns the policy with times: as they are, or measured; says what to expect."""
    if self.seconds:
      return self
    tuned = dataclasses.replace(self, seconds=time())
    if tuned.seconds:
      timing.say(tuned.outlook())
    # What is not tried at first is never tried: there is nothing to learn from.
    pays = not tuned.seconds or tuned.speedup(self.prior_alpha) > _WORTH
    return tuned if pays else None

  def speedup(self, alpha: float) -> float:
    """Returns how much faster than plain decoding the best draft of some tokens is."""
    tokens = itertools.accumulate(alpha**n for n in range(len(self.seconds)))
    each = [t * self.seconds[0] / s for t, s in zip(tokens, self.seconds, strict=True)]
    return max(each[1:], default=0.0)

  def outlook(self) -> str:
    """Returns what to expect of drafting, in a line.

    >>> Auto((1.0, 1.5, 2.0)).outlook()
    'Drafting pays on this device, at this batch, from alpha 0.51 on: 1.17x at 0.75.'
    >>> Auto((1.0, 1.9, 2.9)).outlook()  # doctest: +ELLIPSIS
    'Drafting pays ... from alpha 0.91 on: 0.92x at 0.75, so decoding plainly.'
    >>> Auto((1.0, 2.5, 4.0)).outlook()
    'Drafting does not pay on this device, at this batch: decoding plainly.'
    """
    paying = [
      alpha for alpha in [i / 100 for i in range(1, 100)] if self.speedup(alpha) > 1
    ]
    if not paying:
      return "Drafting does not pay on this device, at this batch: decoding plainly."
    expected = self.speedup(self.prior_alpha)
    return (
      f"Drafting pays on this device, at this batch, from alpha {paying[0]:.2f} on: "
      f"{expected:.2f}x at {self.prior_alpha}"
      f"{'' if expected > _WORTH else ', so decoding plainly'}."
    )

  def most(self, counts: Counts, gamma: int) -> Int[Array, "B"]:
    """The best number for the batch; gamma where nothing was measured."""
    if not self.seconds:
      return super().most(counts, gamma)
    accepted = self.prior_alpha * self.prior_weight + counts.accepted.sum()
    alpha = accepted / (self.prior_weight + counts.tried.sum())
    tokens = jnp.cumsum(alpha ** jnp.arange(gamma + 1))
    best = jnp.argmax(tokens / jnp.array(self.seconds)).astype(jnp.int32)
    return jnp.broadcast_to(best, counts.tried.shape)

  def learned(
    self, counts: Counts, accepted: Int[Array, "B"], drafted: Int[Array, "B"]
  ) -> Counts:
    """The decayed sums."""
    return _decayed(self.decay, counts, accepted, drafted)

  def refilled(self, counts: Counts, before: Counts) -> Counts:
    """As they were: one text is like the next."""
    del counts
    return before


@dataclasses.dataclass(frozen=True)
class Confidence(Policy):
  """Stops where the draft model is not sure what comes next.

  Source: Zhang et al. (Draft & Verify), arXiv 2309.08168, who also adapt the
  threshold; here it is fixed. They read the drawn token's probability; here it is the
  likeliest token's, the same at temperature 0, which is known before the draw: a token
  that is dropped for its own value would bend the law.

  Attributes:
    threshold: a token is drafted where some token has at least this probability.
  """

  threshold: float = 0.4

  def __post_init__(self):
    if not is_probability(self.threshold):
      raise ValueError(
        f"CONFIDENCE must be between 0 and 1, got {self.threshold!r}. It is a "
        "probability: 0 always drafts GAMMA tokens, 1 drafts certain ones alone."
      )

  def goes_on(self, confidence: Float[Array, "B"]) -> Bool[Array, "B"]:
    """Where the draft is as sure as the threshold."""
    return confidence >= self.threshold


@dataclasses.dataclass(frozen=True)
class OnlineAlpha(Policy):
  """Drafts the number of tokens that is best for the row's estimated alpha.

  It maximises tokens over time, E(alpha, gamma) / (gamma c + s(gamma + 1)), with
  E = 1 + alpha + ... + alpha^gamma, c the draft's step and s(n) the target's call for a
  block of n, both in units of the target's call for one token: theorem 3.8 of Leviathan
  et al. where s = 1. Alpha is estimated as
  (prior_alpha prior_weight + accepted) / (prior_weight + tried).

  Attributes:
    draft_cost: c.
    block_costs: s of each width of block that the target is called with
      (`decoding.widths.block_widths`); none is 1 for all.
    prior_alpha: the estimate before the first draft.
    prior_weight: how many tried tokens the prior counts for.
    decay: factor of old counts with each new draft; below 1 it follows the text.
  """

  draft_cost: float
  block_costs: Sequence[float] = ()
  prior_alpha: float = 0.75
  prior_weight: float = 2.0
  decay: float = 0.9

  may_draft_nothing = True

  def __post_init__(self):
    # A list, as gin gives, would make the policy unhashable.
    object.__setattr__(self, "block_costs", tuple(self.block_costs))
    for cost in (self.draft_cost, *self.block_costs):
      if not is_finite(cost):
        raise ValueError(
          "DRAFT_COST and BLOCK_COSTS must be finite numbers of at least 0, got "
          f"{self.draft_cost} and {self.block_costs}. They are times, in units of the "
          "target's call for one token."
        )

  def check(self, gamma: int) -> None:
    """Raises a ValueError where there is not one cost for each width of block."""
    widths = block_widths(gamma)
    if self.block_costs and len(self.block_costs) != len(widths):
      raise ValueError(
        f"BLOCK_COSTS needs one number for each width of block, {widths} at "
        f"GAMMA={gamma}, got {self.block_costs}."
      )

  def alpha(self, counts: Counts) -> Float[Array, "B"]:
    """Returns the estimated chance that a drafted token stands."""
    accepted = self.prior_alpha * self.prior_weight + counts.accepted
    return accepted / (self.prior_weight + counts.tried)

  def most(self, counts: Counts, gamma: int) -> Int[Array, "B"]:
    """The best number of tokens.

    It may be none; as old counts decay, the estimate then returns to the prior, which
    tries again.
    """
    lengths = jnp.arange(gamma + 1)
    tokens = jnp.cumsum(self.alpha(counts)[:, None] ** lengths, axis=1)
    widths = block_widths(gamma)
    width = jnp.searchsorted(jnp.array(widths), lengths + 1)
    block = jnp.array(self.block_costs or (1.0,) * len(widths))[width]
    seconds = lengths * self.draft_cost + block
    return jnp.argmax(tokens / seconds, axis=1).astype(jnp.int32)

  def learned(
    self, counts: Counts, accepted: Int[Array, "B"], drafted: Int[Array, "B"]
  ) -> Counts:
    """The decayed sums."""
    return _decayed(self.decay, counts, accepted, drafted)


def _decayed(decay, counts, accepted, drafted):
  tried = jnp.minimum(accepted + 1, drafted)
  return Counts(decay * counts.accepted + accepted, decay * counts.tried + tried)
