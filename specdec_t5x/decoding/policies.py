"""Policies: drafts of one length, and 'auto', which drafts as many tokens as pay.

Shapes: B rows.
"""

import dataclasses
from collections.abc import Sequence
from typing import Any

import flax.struct
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from specdec_t5x.core.knobs import is_finite, is_probability, is_whole
from specdec_t5x.decoding.contracts import Policy
from specdec_t5x.decoding.state import StepInfo


@dataclasses.dataclass(frozen=True)
class Fixed(Policy):
  """Drafts the same number of tokens in every row and iteration.

  Attributes:
    length: the number of tokens, also as a traced integer; None is the drafter's
      longest draft.
  """

  length: int | Int[Array, ""] | None = None

  def __post_init__(self):
    is_array = hasattr(self.length, "dtype") and self.length.ndim == 0
    if not (self.length is None or is_whole(self.length, 0) or is_array):
      raise ValueError(
        f"Fixed.length must be a whole number of at least 0, got {self.length!r}. "
        "Leave length out for the drafter's own draft length."
      )

  @property
  def may_rest(self) -> bool:
    """Whether a length is given, which may be 0."""
    return self.length is not None

  def lengths(self, policy_state: Any, choices: tuple[int, ...]) -> Int[Array, "1"]:
    """Returns the length, at most the drafter's longest."""
    length = choices[-1] if self.length is None else self.length
    return jnp.full(1, jnp.minimum(length, choices[-1]), jnp.int32)


@flax.struct.dataclass
class Counts:
  """The accepted and the tried tokens of a row so far; old counts decay."""

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

  over the rows of the batch and their earlier outputs.

  Attributes:
    seconds: time of an iteration for each draft length, the first without a draft;
      empty if the times are measured before the decode (`specdec_t5x.tuning`).
    prior_alpha: the estimate before the first draft.
    prior_weight: number of tried tokens that the prior counts for.
    decay: factor of old counts per iteration, so drafting is tried again in time.
    by_row: whether each row has a length by its own drafts, not the batch's best.
    prepare: seconds from inputs to the first iteration per token of an output, without
      a drafter and with the drafter.
    is_kept: whether an earlier process measured the times.
  """

  seconds: Sequence[float] = ()
  # Little and light: outputs may end before a better guess would have been unlearned.
  prior_alpha: float = 0.75
  prior_weight: float = 2.0
  decay: float = 0.98
  by_row: bool = False
  prepare: Sequence[float] = (0.0, 0.0)
  is_kept: bool = dataclasses.field(default=False, compare=False)

  def __post_init__(self):
    # Lists, as gin gives, would make the policy unhashable.
    object.__setattr__(self, "seconds", tuple(self.seconds))
    object.__setattr__(self, "prepare", tuple(self.prepare))
    if not all(is_finite(each) and each > 0 for each in self.seconds):
      raise ValueError(f"CostAware.seconds must be above 0, got {self.seconds}.")
    if len(self.prepare) != 2 or not all(map(is_finite, self.prepare)):
      raise ValueError(
        "CostAware.prepare must be two times of at least 0, without and with the "
        f"drafter, got {self.prepare}. Leave prepare out to measure the times."
      )
    shares = is_probability(self.prior_alpha) and is_probability(self.decay)
    if not (shares and is_finite(self.prior_weight) and self.prior_weight > 0):
      raise ValueError(
        "CostAware needs a prior_alpha and a decay from 0 to 1 and a prior_weight "
        f"above 0, got {self.prior_alpha}, {self.decay} and {self.prior_weight}."
      )

  @property
  def may_rest(self) -> bool:
    """Whether times are known; without times the longest draft is made."""
    return bool(self.seconds)

  def check(self, choices: tuple[int, ...]) -> None:
    """Raises a ValueError if the times don't match the draft lengths."""
    if self.seconds and len(self.seconds) != len(choices):
      raise ValueError(
        f"CostAware.seconds needs {len(choices)} times, of drafts of {choices} tokens, "
        f"got {len(self.seconds)}. Leave seconds out to measure the times."
      )

  def start(self, rows: int, before: Counts | None = None, is_new=None) -> Counts:
    """Keeps the estimates of earlier outputs; per-row estimates restart at 0."""
    if before is not None and not self.by_row:
      return before
    fresh = Counts(jnp.zeros(rows), jnp.zeros(rows))
    if before is None or is_new is None:
      return fresh
    return jax.tree.map(lambda *x: jnp.where(is_new, *x), fresh, before)

  def lengths(self, policy_state: Counts, choices: tuple[int, ...]) -> Int[Array, "#B"]:
    """Returns the best lengths; the longest if nothing was measured."""
    if not self.seconds:
      return jnp.full(1, choices[-1], jnp.int32)
    counts = policy_state
    if not self.by_row:
      counts = jax.tree.map(lambda x: x.sum(keepdims=True), counts)
    accepted = self.prior_alpha * self.prior_weight + counts.accepted
    alpha = accepted / (self.prior_weight + counts.tried)
    powers = alpha[:, None] ** jnp.arange(choices[-1] + 1)
    tokens = jnp.cumsum(powers, axis=-1)[:, np.array(choices)]
    best = jnp.argmax(tokens / jnp.array(self.seconds), axis=-1)
    return jnp.array(choices, jnp.int32)[best]

  def update(self, policy_state: Counts, info: StepInfo) -> Counts:
    """Decays the counts and adds those of the iteration."""
    return Counts(
      self.decay * policy_state.accepted + info.accepted,
      self.decay * policy_state.tried + info.acceptance_positions,
    )
