"""Drafts of one shape, made while they pay: else the target decodes by itself.

Shapes: B rows, G drafted nodes, N = G + 1, L uniforms a decision.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import flax.struct
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from specdec_t5x.core.checks import is_finite, is_probability
from specdec_t5x.core.tree import Tree
from specdec_t5x.core.types import Proposal, Verdict
from specdec_t5x.decoding import timing
from specdec_t5x.decoding.drafter import Context, Drafter, Timer
from specdec_t5x.decoding.state import DecodeState


@flax.struct.dataclass
class PayingState:
  """What the drafter carries.

  Attributes:
    own: the state of the drafter that it asks.
    has_rested: which rows decoded a token without it.
  """

  own: Any
  has_rested: Bool[Array, "B"]


@dataclasses.dataclass(frozen=True)
class Paying(Drafter):
  """Asks another drafter while its drafts bring more tokens than they cost.

  A drafter that reads the target's features misses those of a token that the target
  decoded by itself, so once a batch rests it goes on so. It does where

    (prior + tokens so far) / (prior_weight + iterations so far) < seconds of one that
    drafts / seconds of one that does not,

  over the batch's live rows, without the first iteration of each, when there is no
  feature to draft from; prior is `prior_weight` times 1 + a + ... + a^D at a =
  `prior_alpha`, D the drafts' depth. This reads the past alone, so that outputs keep
  their law (docs/math.md).

  Attributes:
    drafter: what it asks.
    seconds: of an iteration without drafts and of one with them; none where they are to
      be measured before the decode.
    prior_alpha: the chance that a drafted token stands, before any was tried.
    prior_weight: how many iterations the prior counts for.
  """

  drafter: Drafter
  seconds: Sequence[float] = ()
  prior_alpha: float = 0.8
  prior_weight: float = 8.0

  may_rest = True

  def __post_init__(self):
    object.__setattr__(self, "seconds", tuple(self.seconds))
    are_times = all(is_finite(each) and each > 0 for each in self.seconds)
    if len(self.seconds) not in (0, 2) or not are_times:
      raise ValueError(
        "Paying.seconds needs two times above 0, without drafts and with them, got "
        f"{self.seconds}. Leave them out, and they are measured."
      )
    is_weight = is_finite(self.prior_weight) and self.prior_weight > 0
    if not (is_probability(self.prior_alpha) and is_weight):
      raise ValueError(
        "Paying needs a prior_alpha from 0 to 1 and a prior_weight above 0, got "
        f"{self.prior_alpha!r} and {self.prior_weight!r}."
      )

  @property
  def tree(self) -> Tree:
    """The drafter's."""
    return self.drafter.tree

  @property
  def depth(self) -> int:
    """The drafter's."""
    return self.drafter.depth

  @property
  def independent(self) -> bool:
    """As the drafter's."""
    return self.drafter.independent

  @property
  def networks(self) -> Mapping[str, Any]:
    """The drafter's."""
    return self.drafter.networks

  def check(self, target: Any) -> None:
    """Raises a ValueError where the drafter can't draft for the target."""
    self.drafter.check(target)

  def start(self, context: Context) -> PayingState:
    """Returns the drafter's first state."""
    return PayingState(
      self.drafter.start(context), jnp.zeros(context.source.shape[0], bool)
    )

  def propose(
    self, context: Context, state: DecodeState, uniforms: Float[Array, "B G L"]
  ) -> tuple[Proposal, PayingState]:
    """Drafts as the drafter does."""
    inner = state.replace(drafter_state=state.drafter_state.own)
    proposal, own = self.drafter.propose(context, inner, uniforms)
    return proposal, state.drafter_state.replace(own=own)

  def commit(
    self,
    context: Context,
    drafter_state: PayingState,
    verdict: Verdict,
    features: Float[Array, "B N D"],
  ) -> PayingState:
    """Returns the state with the drafter's."""
    own = self.drafter.commit(context, drafter_state.own, verdict, features)
    return drafter_state.replace(own=own)

  def rests(self, context: Context, state: DecodeState) -> Bool[Array, ""]:
    """Returns whether drafts cost more than they bring, or did before."""
    del context
    live = ~state.ended
    before = (live & state.drafter_state.has_rested).any()
    return before | (self._tokens_a_call(state, live) < self._cost)

  def rested(self, drafter_state: PayingState) -> PayingState:
    """Returns the state of rows that draft no more."""
    rows = drafter_state.has_rested.shape
    return drafter_state.replace(has_rested=jnp.ones(rows, bool))

  def tuned(self, time: Timer) -> Drafter | None:
    """Returns the drafter with times, as they are or measured; says what to expect."""
    if self.seconds:
      return self
    told = lambda drafts: _Told(self.drafter, drafts=drafts)
    tuned = dataclasses.replace(self, seconds=time(told, (0, 1)))
    if not tuned.seconds:
      return self.drafter
    timing.say(tuned.outlook())
    return tuned if tuned._prior > tuned._cost else None

  def outlook(self) -> str:
    """Returns what to expect of drafting, in a line."""
    end = "." if self._prior > self._cost else ", so decoding plainly."
    return (
      f"Drafting pays on this device, at this batch, from {self._cost:.2f} tokens a "
      f"call on: {self._prior:.2f} at alpha {self.prior_alpha}{end}"
    )

  @property
  def _cost(self) -> float:
    """Tokens that an iteration with drafts must bring; none where nothing is known."""
    return self.seconds[1] / self.seconds[0] if self.seconds else 0.0

  @property
  def _prior(self) -> float:
    """Tokens a call before any was tried."""
    return sum(self.prior_alpha**n for n in range(self.depth + 1))

  def _tokens_a_call(self, state: DecodeState, live: Bool[Array, "B"]):
    # The first iteration brings a token without a draft.
    calls = jnp.where(live, jnp.maximum(state.iteration - 1, 0), 0).sum()
    tokens = jnp.where(live, state.lengths - state.starts - 1, 0)
    tokens = jnp.maximum(tokens, 0).sum()
    prior = self._prior * self.prior_weight
    return (prior + tokens) / (self.prior_weight + calls)


@dataclasses.dataclass(frozen=True)
class _Told(Paying):
  """Asks where it is told to, to be timed."""

  drafts: int | Int[Array, ""] = 1

  def rests(self, context: Context, state: DecodeState) -> Bool[Array, ""]:
    """Where it is told 0."""
    del context, state
    return jnp.asarray(self.drafts) == 0
