"""How long the next draft of a row shall be: policies of `drafters.adaptive`.

A policy sees what a row's earlier iterations came to and, before each token is drawn,
how sure the draft is of it; never another row, and never the token that it decides
about. Whatever else it does, the output keeps its law (docs/math.md).

Shapes: B rows.
"""

import dataclasses
from typing import Protocol, runtime_checkable

import flax.struct
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from specdec_t5x.core.checks import is_finite, is_probability

GAMMA_POLICIES = ("fixed", "confidence", "online")
DEFAULT_CONFIDENCE = 0.4


@flax.struct.dataclass
class Counts:
  """What came of a row's drafts so far; the policy weighs old and new.

  Attributes:
    accepted: drafted tokens that stood.
    tried: those and, of each draft, the first that did not stand.
  """

  accepted: Float[Array, "B"]
  tried: Float[Array, "B"]


@runtime_checkable
class Policy(Protocol):
  """Decides when a row stops drafting."""

  def most(self, counts: Counts, gamma: int) -> Int[Array, "B"]:
    """Returns how many tokens, of at most gamma, each row's next draft may have."""
    ...

  def goes_on(self, confidence: Float[Array, "B"]) -> Bool[Array, "B"]:
    """Returns which rows draft a token whose likeliest value has this probability."""
    ...

  def learned(
    self, counts: Counts, accepted: Int[Array, "B"], tried: Int[Array, "B"]
  ) -> Counts:
    """Returns the counts with those of one more draft."""
    ...


@dataclasses.dataclass(frozen=True)
class Confidence:
  """Stops where the draft model is not sure what comes next.

  Source: Zhang et al. (Draft & Verify), arXiv 2309.08168, who also adapt the
  threshold; here it is fixed. They read the drawn token's probability; here it is the
  likeliest token's, the same at temperature 0, which is known before the draw: a token
  that is dropped for its own value would bend the law.

  Attributes:
    threshold: a token is drafted where some token has at least this probability.
  """

  threshold: float = DEFAULT_CONFIDENCE

  def __post_init__(self):
    if not is_probability(self.threshold):
      raise ValueError(
        f"CONFIDENCE must be between 0 and 1, got {self.threshold!r}. It is a "
        "probability: 0 always drafts GAMMA tokens, 1 drafts certain ones alone."
      )

  def most(self, counts: Counts, gamma: int) -> Int[Array, "B"]:
    """All gamma."""
    return jnp.full(counts.tried.shape, gamma, jnp.int32)

  def goes_on(self, confidence: Float[Array, "B"]) -> Bool[Array, "B"]:
    """Where the draft is as sure as the threshold."""
    return confidence >= self.threshold

  def learned(
    self, counts: Counts, accepted: Int[Array, "B"], tried: Int[Array, "B"]
  ) -> Counts:
    """Nothing."""
    del accepted, tried
    return counts


@dataclasses.dataclass(frozen=True)
class OnlineAlpha:
  """Drafts the number of tokens that is best for the row's estimated alpha.

  It maximises tokens over time, E(alpha, gamma) / (gamma c + s(gamma + 1)), with
  E = 1 + alpha + ... + alpha^gamma, c the draft's step and s(n) the target's call for a
  block of n, both in units of the target's call for one token: theorem 3.8 of Leviathan
  et al. where s = 1. Alpha is estimated as
  (prior_alpha prior_weight + accepted) / (prior_weight + tried).

  Attributes:
    draft_cost: c.
    widths: the sizes of block that the target is called with, rising; the last of them
      holds the longest draft and the token before it.
    block_costs: s of each width; none is 1 for all.
    prior_alpha: the estimate before the first draft.
    prior_weight: how many tried tokens the prior counts for.
    decay: factor of old counts with each new draft; below 1 it follows the text.
  """

  draft_cost: float
  widths: tuple[int, ...]
  block_costs: tuple[float, ...] = ()
  prior_alpha: float = 0.75
  prior_weight: float = 2.0
  decay: float = 0.9

  def __post_init__(self):
    for cost in (self.draft_cost, *self.block_costs):
      if not is_finite(cost):
        raise ValueError(
          "DRAFT_COST and BLOCK_COSTS must be finite numbers of at least 0, got "
          f"{self.draft_cost} and {self.block_costs}. They are times, in units of the "
          "target's call for one token."
        )
    if self.block_costs and len(self.block_costs) != len(self.widths):
      raise ValueError(
        f"BLOCK_COSTS needs one number for each width of block, {self.widths} at this "
        f"GAMMA, got {self.block_costs}."
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
    width = jnp.searchsorted(jnp.array(self.widths), lengths + 1)
    block = jnp.array(self.block_costs or (1.0,) * len(self.widths))[width]
    seconds = lengths * self.draft_cost + block
    return jnp.argmax(tokens / seconds, axis=1).astype(jnp.int32)

  def goes_on(self, confidence: Float[Array, "B"]) -> Bool[Array, "B"]:
    """Always."""
    return jnp.ones(confidence.shape, bool)

  def learned(
    self, counts: Counts, accepted: Int[Array, "B"], tried: Int[Array, "B"]
  ) -> Counts:
    """The decayed sums."""
    return Counts(
      self.decay * counts.accepted + accepted, self.decay * counts.tried + tried
    )


def policy_for(
  name: str,
  confidence: float = DEFAULT_CONFIDENCE,
  draft_cost: float | None = None,
  block_costs: tuple[float, ...] = (),
  *,
  widths: tuple[int, ...],
) -> Policy | None:
  """Returns the policy called `name`; None for the fixed length.

  Args:
    name: one of `GAMMA_POLICIES`.
    confidence: threshold of 'confidence'.
    draft_cost: c, of 'online'.
    block_costs: s of each width, of 'online'.
    widths: the sizes of block that the target is called with.

  Raises:
    ValueError: where the name is unknown, or a setting is missing, out of its range or
      of another policy.
  """
  if name not in GAMMA_POLICIES:
    raise ValueError(
      f"Unknown GAMMA_POLICY {name!r}; expected one of {GAMMA_POLICIES}."
    )
  if name != "confidence" and confidence != DEFAULT_CONFIDENCE:
    raise ValueError(
      f"CONFIDENCE={confidence} needs GAMMA_POLICY='confidence', got {name!r}."
    )
  if name != "online" and (draft_cost is not None or block_costs):
    raise ValueError(
      f"DRAFT_COST={draft_cost} and BLOCK_COSTS={block_costs} need "
      f"GAMMA_POLICY='online', got {name!r}. Set it, or leave the costs out."
    )
  if name == "fixed":
    return None
  if name == "confidence":
    return Confidence(confidence)
  if draft_cost is None:
    raise ValueError(
      "GAMMA_POLICY='online' needs DRAFT_COST = c, the draft's time for a token / the "
      "target's, got None. Measure it on the machine that decodes: time "
      "specdec_t5x.generate with draft=None for each of the two models, after a first "
      "call that compiles, and divide the seconds a token; `make demo` prints its own."
    )
  return OnlineAlpha(draft_cost, widths, tuple(block_costs))
