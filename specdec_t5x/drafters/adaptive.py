"""Drafts whose length each row decides as it goes: adaptive gamma.

A row's number of drafted tokens is a stopping time: whether token i counts is settled
before token i is drawn. So every rule keeps its guarantee (docs/math.md).

Shapes: B rows, G gamma (the longest draft), N = G + 1, V vocabulary, L uniforms a
decision.
"""

import abc
import dataclasses
from collections.abc import Mapping
from typing import Any

import flax.struct
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from specdec_t5x.core import tree
from specdec_t5x.core.distributions import Sampling, adjusted_probs
from specdec_t5x.core.types import Cache, ExtendFn, Proposal, Verdict
from specdec_t5x.decoding.drafter import Context, Drafter, Timer
from specdec_t5x.decoding.state import DecodeState
from specdec_t5x.drafters.draft_model import DEFAULT_GAMMA, check_gamma, drawn
from specdec_t5x.drafters.policies import Always, Confidence, Policy


@flax.struct.dataclass
class AdaptiveState:
  """What the drafter carries.

  Attributes:
    cache: the draft model's; None where it has none of its own.
    counts: what the policy has learned of each row's drafts.
    drafted: how many tokens of the last proposal counted.
    known: how long the rows were at the last proposal.
  """

  cache: Cache | None
  counts: Any
  drafted: Int[Array, "B"]
  known: Int[Array, "B"]


@flax.struct.dataclass
class _Draft:
  """A draft while it grows.

  Attributes:
    cache: the draft model's; it lacks the last token.
    tokens: drawn tokens, zeros beyond `drawn`.
    probs: the law of each, zeros beyond `drawn`; None where tokens are certain.
    drawn: how many tokens were drawn, in every row.
    size: how many of them count.
    going: which rows may have another one.
  """

  cache: Cache
  tokens: Int[Array, "B G"]
  probs: Float[Array, "B G V"] | None
  drawn: Int[Array, ""]
  size: Int[Array, "B"]
  going: Bool[Array, "B"]


class Adaptive(Drafter):
  """What drafters of chains whose length a policy decides have in common.

  Attributes:
    gamma: most tokens a draft.
    policy: how long a row's draft shall be.
  """

  gamma: int
  policy: Policy

  varies = True

  def __post_init__(self):
    check_gamma(self.gamma)
    self.policy.check(self.gamma)

  @abc.abstractmethod
  def extend(self, context: Context) -> ExtendFn:
    """Returns what drafts."""

  @abc.abstractmethod
  def read(
    self, context: Context, state: DecodeState
  ) -> tuple[Float[Array, "B V"], Cache]:
    """Returns the logits after the known tokens, and a cache that holds these."""

  def first_cache(self, context: Context) -> Cache | None:
    """Returns the cache that is carried between drafts; by default there is none."""
    del context

  @property
  def tree(self) -> tree.Tree:
    """A chain of gamma tokens."""
    return tree.chain(self.gamma)

  def start(self, context: Context) -> AdaptiveState:
    """Returns the first cache, and a policy that has learned nothing."""
    rows = context.source.shape[0]
    none = jnp.zeros(rows, jnp.int32)
    return AdaptiveState(self.first_cache(context), self.policy.first(rows), none, none)

  def propose(
    self, context: Context, state: DecodeState, uniforms: Float[Array, "B G L"]
  ) -> tuple[Proposal, AdaptiveState]:
    """Drafts until every row has stopped; see `decoding.drafter.Drafter`."""
    own, sampling = state.drafter_state, context.sampling
    most, extend = self._most(context, state), self.extend(context)
    logits, cache = self.read(context, state)
    shape = uniforms.shape[:2]
    no_probs = None if sampling.greedy else jnp.zeros((*shape, logits.shape[-1]))
    draft = _Draft(
      cache=cache,
      tokens=jnp.zeros(shape, jnp.int32),
      probs=no_probs,
      drawn=jnp.zeros((), jnp.int32),
      size=jnp.zeros_like(most),
      going=most > 0,
    )

    def grown(draft, logits):
      return self._grown(context, draft, logits, uniforms, most, own.counts)

    def draft_next(draft):
      last = _column(draft.tokens, draft.drawn - 1)
      logits, _, cache = extend(draft.cache, last[:, None])
      return grown(draft.replace(cache=cache), logits[:, 0])

    draft = grown(draft, logits)
    # A row goes on only while it has fewer than `most` <= G tokens: at most G - 1 more.
    draft = jax.lax.while_loop(lambda draft: draft.going.any(), draft_next, draft)
    proposal = Proposal.chain(draft.tokens, draft.probs, draft.size)
    cache = None if own.cache is None else draft.cache
    return proposal, own.replace(cache=cache, drafted=draft.size, known=state.lengths)

  def commit(
    self,
    context: Context,
    drafter_state: AdaptiveState,
    verdict: Verdict,
    features: Float[Array, "B N D"],
  ) -> AdaptiveState:
    """Returns the state with the verdict counted."""
    del context, features
    # `drafted` already stops at the end of sequence and at the end of the room, so a
    # draft that was cut there and stood as a whole counts no failure.
    own, accepted = drafter_state, verdict.last
    counts = self.policy.learned(own.counts, accepted, own.drafted)
    if own.cache is None:
      return own.replace(counts=counts)
    # Beyond what was accepted the cache holds tokens that did not stand.
    held = jnp.minimum(own.cache.index, own.known + accepted)
    return own.replace(counts=counts, cache=own.cache.at(held))

  @property
  def may_rest(self) -> bool:
    """Whether the policy may say so."""
    return self.policy.may_draft_nothing

  def rests(self, context: Context, state: DecodeState) -> Bool[Array, ""]:
    """Returns whether the policy would have no row draft."""
    return ~(self._most(context, state) > 0).any()

  def rested(self, drafter_state: AdaptiveState) -> AdaptiveState:
    """Returns the state with a draft of no token counted; the draft reads it later."""
    none = jnp.zeros_like(drafter_state.drafted)
    counts = self.policy.learned(drafter_state.counts, none, none)
    return drafter_state.replace(counts=counts)

  def known(self, drafter_state: AdaptiveState) -> Any:
    """Returns what the policy has learned."""
    return drafter_state.counts

  def nothing_known(self, rows: int) -> Any:
    """Returns what the policy begins with."""
    return self.policy.first(rows)

  def knowing(self, drafter_state: AdaptiveState, known: Any) -> AdaptiveState:
    """Returns the state with what the policy goes on knowing."""
    counts = self.policy.refilled(drafter_state.counts, known)
    return drafter_state.replace(counts=counts)

  def tuned(self, time: Timer) -> "Adaptive | None":
    """Returns the drafter with a policy that knows what drafts take."""
    told = lambda length: dataclasses.replace(self, policy=Always(length))
    policy = self.policy.tuned(lambda: time(told, range(self.gamma + 1)))
    return policy and dataclasses.replace(self, policy=policy)

  def _most(self, context, state):
    """Returns how many tokens each row may draft; none where a row has ended.

    The loop's own `limit` says the same of what counts. Here it also spares drafting,
    and tells `commit` what was tried.
    """
    # Less the token that the target adds.
    room = state.room(context.max_length) - 1
    most = self.policy.most(state.drafter_state.counts, self.gamma)
    most = jnp.minimum(most, jnp.maximum(room, 0))
    return jnp.where(state.ended, 0, most)

  def _grown(self, context, draft, logits, uniforms, most, counts):
    """Returns the draft with one more token a row, counted where the row goes on."""
    confidence = _confidence(logits, context.sampling)
    going = draft.going & self.policy.goes_on(confidence)
    draws = jax.lax.dynamic_index_in_dim(uniforms, draft.drawn, 1, keepdims=False)
    new = drawn(logits, context.sampling, draws)
    put = lambda buffer, new: jax.lax.dynamic_update_index_in_dim(
      buffer, new, draft.drawn, axis=1
    )
    tokens, probs = jax.tree.map(put, (draft.tokens, draft.probs), new)
    size = draft.size + going.astype(jnp.int32)
    going &= self.policy.goes_on_after(counts, _probability(logits, new[0]))
    return draft.replace(
      tokens=tokens,
      probs=probs,
      drawn=draft.drawn + 1,
      size=size,
      going=going & (new[0] != context.eos_id) & (size < most),
    )


@dataclasses.dataclass(frozen=True)
class AdaptiveDraft(Adaptive):
  """A draft model that stops where its policy says, and with the last row to stop.

  Attributes:
    network: drafts over the target's vocabulary.
    gamma: most tokens a draft.
    policy: how long a row's draft shall be.
  """

  network: Any
  gamma: int = DEFAULT_GAMMA
  policy: Policy = dataclasses.field(default_factory=Confidence)

  @property
  def networks(self) -> Mapping[str, Any]:
    """The draft."""
    return {"draft": self.network}

  def extend(self, context: Context) -> ExtendFn:
    """Returns the draft model."""
    return context.extend["draft"]

  def first_cache(self, context: Context) -> Cache:
    """Returns the draft model's first cache."""
    return context.start("draft")

  def read(
    self, context: Context, state: DecodeState
  ) -> tuple[Float[Array, "B V"], Cache]:
    """Reads what the draft model has missed, two tokens a call."""
    cache = state.drafter_state.cache
    return _read(context, cache, state.sequences, state.lengths)


def _read(context, cache, sequences, lengths):
  """Returns the draft's logits after the known tokens, and its cache up to there."""
  extend = context.extend["draft"]

  def lacks_some(carry):
    return (carry[1].index < lengths).any()

  def read_two(carry):
    cache = carry[1]
    # A row that lacks none reads its last token again.
    start = jnp.minimum(cache.index, lengths - 1)
    tokens = jnp.take_along_axis(sequences, start[:, None] + jnp.arange(2), axis=1)
    new, _, cache = extend(cache.at(start), tokens)
    last = jnp.minimum(lengths - 1 - start, 1)[:, None, None]
    new = jnp.take_along_axis(new, last, axis=1)[:, 0]
    return new, cache.at(jnp.minimum(start + 2, lengths))

  shape = jax.eval_shape(lambda: read_two((None, cache))[0])
  start = jnp.zeros(shape.shape, shape.dtype), cache
  return jax.lax.while_loop(lacks_some, read_two, start)


def _confidence(logits, sampling):
  """Returns the probability of the likeliest token."""
  # Greedy laws are one-hot and would say nothing: there it is the one at T = 1.
  sampling = Sampling() if sampling.greedy else sampling
  return adjusted_probs(logits, sampling).max(axis=-1)


def _probability(logits, token):
  """Returns what each token's probability is at temperature 1."""
  law = jax.nn.softmax(logits)
  return jnp.take_along_axis(law, token[:, None], axis=1, mode="clip")[:, 0]


def _column(rows: Array, at: Int[Array, ""]) -> Array:
  """Returns one entry of each row."""
  return jax.lax.dynamic_index_in_dim(rows, at, 1, keepdims=False)
