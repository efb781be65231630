"""Drafts whose length each row decides as it goes: adaptive gamma.

A row's number of drafted tokens is a stopping time: whether token i counts is settled
before token i is drawn. So every rule keeps its guarantee (docs/math.md).

Shapes: B rows, G gamma (the longest draft), V vocabulary, S sequence buffer.
"""

import dataclasses

import flax.struct
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from specdec_t5x.core.distributions import Sampling, adjusted_probs, draw
from specdec_t5x.core.types import Cache, Proposal, Verdict
from specdec_t5x.drafters.draft_model import DraftModel
from specdec_t5x.drafters.policies import Counts, Policy


@flax.struct.dataclass
class AdaptiveState:
  """What the drafter carries.

  Attributes:
    cache: the draft model's.
    counts: what came of each row's drafts.
    drafted: how many tokens of the last proposal counted.
    starts: where each row's output begins.
  """

  cache: Cache
  counts: Counts
  drafted: Int[Array, "B"]
  starts: Int[Array, "B"]


@flax.struct.dataclass
class _Draft:
  """A draft while it grows.

  Attributes:
    cache: the draft model's; it lacks the last token.
    tokens: drawn tokens, zeros beyond `drawn`.
    probs: the law of each, zeros beyond `drawn`.
    drawn: how many tokens were drawn, in every row.
    size: how many of them count.
    going: which rows may have another one.
  """

  cache: Cache
  tokens: Int[Array, "B G"]
  probs: Float[Array, "B G V"]
  drawn: Int[Array, ""]
  size: Int[Array, "B"]
  going: Bool[Array, "B"]


@dataclasses.dataclass(frozen=True)
class AdaptiveDraft(DraftModel):
  """A draft model that stops where its policy says, and with the last row to stop.

  Attributes:
    policy: how long a row's draft shall be.
    max_length: room for the output, in tokens.
    eos_id: the token that ends a sequence.
  """

  policy: Policy
  max_length: int
  eos_id: int

  def start(self, cache: Cache, rows: int) -> AdaptiveState:
    """Returns the first state of `rows` rows, from the draft model's first cache."""
    nothing = jnp.zeros(rows)
    # The cache holds all that is known but for the last token, which was never fed.
    return AdaptiveState(
      cache=cache,
      counts=Counts(nothing, nothing),
      drafted=jnp.zeros(rows, jnp.int32),
      starts=cache.index + 1,
    )

  def propose(
    self,
    state: AdaptiveState,
    sequences: Int[Array, "B S"],
    lengths: Int[Array, "B"],
    uniforms: Float[Array, "B G L"],
  ) -> tuple[Proposal, AdaptiveState]:
    """Drafts until every row has stopped; see `core.types.Drafter`."""
    most = self._most(state, sequences, lengths)
    logits, cache = self._read_last_two(state.cache, sequences, lengths)
    draft = _Draft(
      cache=cache,
      tokens=jnp.zeros(uniforms.shape[:2], jnp.int32),
      probs=jnp.zeros((*uniforms.shape[:2], logits.shape[-1])),
      drawn=jnp.zeros((), jnp.int32),
      size=jnp.zeros_like(most),
      going=most > 0,
    )

    def draft_next(draft):
      last = _column(draft.tokens, draft.drawn - 1)
      logits, _, cache = self.extend(draft.cache, last[:, None])
      return self._grown(draft.replace(cache=cache), logits[:, 0], uniforms, most)

    draft = self._grown(draft, logits, uniforms, most)
    # A row goes on only while it has fewer than `most` <= G tokens: at most G - 1 more.
    draft = jax.lax.while_loop(lambda draft: draft.going.any(), draft_next, draft)
    state = state.replace(cache=draft.cache, drafted=draft.size)
    return Proposal(draft.tokens, draft.probs, draft.size), state

  def commit(
    self, state: AdaptiveState, verdict: Verdict, features: Float[Array, "B K D"]
  ) -> AdaptiveState:
    """Returns the state with the verdict counted."""
    del features
    # `drafted` already stops at the end of sequence and at the end of the room, so a
    # draft that was cut there and stood as a whole counts no failure.
    accepted = verdict.num_accepted
    tried = jnp.minimum(accepted + 1, state.drafted)
    return state.replace(counts=self.policy.learned(state.counts, accepted, tried))

  def _most(self, state, sequences, lengths):
    """Returns how many tokens each row may draft; none where a row has ended.

    The loop's own `limit` says the same of what counts. Here it also spares drafting,
    and tells `commit` what was tried.
    """
    # Less the token that the target adds.
    room = state.starts + self.max_length - lengths - 1
    # An end of sequence within a prompt ends nothing.
    last, has_output = _column(sequences, lengths - 1), lengths > state.starts
    has_ended = has_output & (last == self.eos_id)
    most = self.policy.most(state.counts, self.gamma)
    most = jnp.minimum(most, jnp.maximum(room, 0))
    return jnp.where(has_ended, 0, most)

  def _grown(self, draft, logits, uniforms, most):
    """Returns the draft with one more token a row, counted where the row goes on."""
    going = draft.going & self.policy.goes_on(self._confidence(logits))
    draws = jax.lax.dynamic_index_in_dim(uniforms, draft.drawn, 1, keepdims=False)
    token, probs = draw(logits, self.sampling, draws)
    put = lambda buffer, new: jax.lax.dynamic_update_index_in_dim(
      buffer, new, draft.drawn, axis=1
    )
    size = draft.size + going.astype(jnp.int32)
    return draft.replace(
      tokens=put(draft.tokens, token),
      probs=put(draft.probs, probs),
      drawn=draft.drawn + 1,
      size=size,
      going=going & (token != self.eos_id) & (size < most),
    )

  def _confidence(self, logits):
    """Returns the probability of the likeliest token."""
    # Greedy laws are one-hot and would say nothing: there it is the one at T = 1.
    sampling = Sampling() if self.sampling.greedy else self.sampling
    return adjusted_probs(logits, sampling).max(axis=-1)


def _column(rows: Array, at: Int[Array, "..."]) -> Array:
  """Returns one entry of each row: the same for all, or each row's own."""
  at = jnp.broadcast_to(at, rows.shape[:1])
  return jnp.take_along_axis(rows, at[:, None], axis=1)[:, 0]
