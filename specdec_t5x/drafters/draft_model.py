"""Drafting by a smaller model of the same family (Leviathan et al., algorithm 1).

`Stepwise` is the base of all drafters that call a network once per drafted token. A
row's number of drafted tokens is a stopping time: whether token i counts is decided
before token i is drawn. Every rule therefore keeps its guarantee (docs/math.md).

Shapes: B rows, G gamma (the longest draft), N = G + 1, S sequence buffer, V vocabulary,
D width of the features, L uniforms per decision.
"""

import abc
import dataclasses
from collections.abc import Mapping
from typing import Any, ClassVar

import flax.struct
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from specdec_t5x.core.distributions import argmax, certain_log_prob, draw
from specdec_t5x.core.knobs import Knob, is_whole, knob
from specdec_t5x.core.tree import Tree, chain
from specdec_t5x.core.types import (
  Cache,
  DraftFn,
  ExtendFn,
  Proposal,
  Verdict,
  check_uniforms,
  is_end,
)
from specdec_t5x.decoding.contracts import Context, Drafter, Stops, Traits
from specdec_t5x.decoding.state import DecodeState
from specdec_t5x.network.net import caught_up, read_last

DEFAULT_GAMMA = 5
GAMMA = Knob(
  expected="a whole number of at least 1",
  accepts=lambda value: value is None or is_whole(value, 1),
  macro="GAMMA",
  fix="To decode without speculation, use configs/baseline_*.gin, or no draft.",
)


def gamma_knob() -> Any:
  """Returns the dataclass field `gamma` of a drafter: None is the default length."""
  return knob(None, GAMMA)


class ChainDrafter(Drafter):
  """The base of drafters that draft a chain.

  Attributes:
    gamma: the most tokens of a draft; None is `default_gamma`, or less if the outputs
      are shorter.
    default_gamma: the default length.
  """

  gamma: int | None
  default_gamma: ClassVar[int] = DEFAULT_GAMMA

  @property
  def tree(self) -> Tree:
    """A chain of gamma tokens."""
    return chain(self.gamma or self.default_gamma)


@flax.struct.dataclass
class _Draft:
  """The drafts of all rows while they grow: all rows get a token in each turn.

  The surplus tokens of rows that have stopped before are not valid.
  """

  cache: Any  # For `Stepwise.extend`; lacks the last token.
  tokens: Int[Array, "B G"]  # Zeros beyond `num_drawn`, like `probs`.
  probs: Float[Array, "B G V"] | None  # None if tokens are certain.
  num_drawn: Int[Array, ""]
  may_grow: Bool[Array, "B"]  # Whether each row may get another valid token.


class Stepwise(ChainDrafter):
  """The base of drafters that draft a chain token by token."""

  traits = Traits(stops=Stops.AT_LENGTH, resumes=True, auto="named")

  @abc.abstractmethod
  def extend(self, context: Context) -> ExtendFn:
    """Returns the drafting network's `extend`, which the draft calls with one token."""

  def draft_fn(self, context: Context, rows: int) -> DraftFn | None:
    """Returns a function that drafts certain tokens in one call, or None."""

  @abc.abstractmethod
  def first_logits(
    self, context: Context, state: DecodeState
  ) -> tuple[Float[Array, "B V"], Cache]:
    """Returns the logits of the first drafted token, and the cache for `extend`.

    Scores the known tokens that the cache lacks. The returned cache lacks none.
    """

  def next_state(self, cache: Cache, state: DecodeState) -> Any:
    """Returns the drafter's state after a draft, given the last cache of `extend`."""

  def propose(
    self, context: Context, state: DecodeState, uniforms: Float[Array, "B G L"]
  ) -> tuple[Proposal, Any]:
    """Drafts a chain; see `decoding.contracts.Drafter`.

    If `draft_fn` gives a function, all tokens after the first are one call. Otherwise a
    token is a call.
    """
    size = self.tree.size
    check_uniforms(uniforms, size)
    lengths = context.draft_lengths(state)
    extend = self.extend(context)

    def append(draft, logits):
      """Returns the draft with one more token per row, valid in rows that may grow."""
      place = draft.num_drawn
      draws = jax.lax.dynamic_index_in_dim(uniforms, place, 1, keepdims=False)
      token, q = draw_token(logits, context, draws)
      probs = draft.probs
      if probs is not None:
        probs = jax.lax.dynamic_update_index_in_dim(probs, q, place, axis=1)
      is_last = is_end(token, context.eos_id) | (place + 1 >= lengths)
      return draft.replace(
        tokens=jax.lax.dynamic_update_index_in_dim(draft.tokens, token, place, axis=1),
        probs=probs,
        num_drawn=place + 1,
        may_grow=draft.may_grow & ~is_last,
      )

    def draft_next(draft):
      last = jax.lax.dynamic_index_in_dim(draft.tokens, draft.num_drawn - 1, 1)
      logits, _, cache = extend(draft.cache, last)
      return append(draft.replace(cache=cache), logits[:, 0])

    logits, cache = self.first_logits(context, state)
    sampling, shape = context.sampling, uniforms.shape[:2]
    draft = _Draft(
      cache=cache,
      tokens=jnp.zeros(shape, jnp.int32),
      probs=None if sampling.certain else jnp.zeros((*shape, logits.shape[-1])),
      num_drawn=jnp.zeros((), jnp.int32),
      may_grow=lengths > 0,
    )
    draft = append(draft, logits)
    keeps_all = not (sampling.top_k or sampling.top_p)
    is_one_call = sampling.greedy or (sampling.coupled and keeps_all)
    draft_later = self.draft_fn(context, lengths.size) if is_one_call else None
    if draft_later and size > 1:
      noise = None
      if not sampling.greedy:
        from specdec_t5x.core.noise import exponentials

        later = uniforms[:, 1:].swapaxes(0, 1)
        noise = -jnp.log(exponentials(later, logits.shape[-1]))
      tokens, cache = draft_later(
        draft.cache, draft.tokens[:, 0], size - 1, noise, sampling.temperature
      )
      draft = draft.replace(cache=cache, tokens=draft.tokens.at[:, 1:].set(tokens.T))
    elif context.stops_early:
      # A row may grow only while the row has fewer than `lengths` <= G tokens.
      draft = jax.lax.while_loop(lambda draft: draft.may_grow.any(), draft_next, draft)
    else:
      draft = jax.lax.fori_loop(1, size, lambda _, draft: draft_next(draft), draft)
    ends = is_end(draft.tokens, context.eos_id)
    up_to_end = jnp.where(ends.any(axis=1), ends.argmax(axis=1) + 1, size)
    num_valid = jnp.minimum(lengths, up_to_end)
    proposal = Proposal.chain(draft.tokens, draft.probs, num_valid)
    return proposal, self.next_state(draft.cache, state)


def draw_token(
  logits: Float[Array, "B V"], context: Context, uniforms: Float[Array, "B L"]
) -> tuple[Int[Array, "B"], Float[Array, "B V"] | None]:
  """Draws tokens; returns the tokens, and q or None for `Sampling.certain` tokens."""
  if not context.sampling.certain:
    return draw(logits, context.sampling, uniforms, context.adjust)
  if context.sampling.coupled:
    # Here alone: only coupled draws need the noise.
    from specdec_t5x.core.noise import perturbed

    logits = perturbed(logits, context.sampling, uniforms, context.adjust)
  return likeliest(logits), None


def likeliest(logits: Float[Array, "*batch V"]) -> Int[Array, "*batch"]:
  """Returns the argmax; -1, which is no token, if a logit is NaN or infinity."""
  token = argmax(logits).astype(jnp.int32)
  return jnp.where(jnp.isnan(certain_log_prob(logits)), -1, token)


@flax.struct.dataclass
class StepwiseState:
  """The state of a drafter with a draft model, between two drafts.

  Attributes:
    cache: the draft model's cache.
    num_known: number of each row's known tokens before the last draft. `commit` rolls
      the cache back to these tokens and the accepted tokens.
  """

  cache: Cache
  num_known: Int[Array, "B"]


@dataclasses.dataclass(frozen=True)
class DraftModel(Stepwise):
  """Samples up to gamma tokens one by one from a network.

  Attributes:
    network: a network, or a table of n-grams, over the target's vocabulary.
    gamma: the most tokens of a draft.
  """

  network: Any
  gamma: int | None = gamma_knob()

  @property
  def networks(self) -> Mapping[str, Any]:
    """The drafting network, by name."""
    return {"draft": self.network}

  def extend(self, context: Context) -> ExtendFn:
    """Returns the draft network's `extend`."""
    return context.networks["draft"].extend

  def draft_fn(self, context: Context, rows: int) -> DraftFn | None:
    """Returns the draft network's `draft` for the number of rows."""
    draft = context.networks["draft"].draft
    return draft and draft(rows)

  def start(self, context, caches, source) -> StepwiseState:
    """Returns a state with the draft's first cache."""
    cache = caches["draft"]
    return StepwiseState(cache, jnp.zeros_like(cache.index))

  def first_logits(
    self, context: Context, state: DecodeState
  ) -> tuple[Float[Array, "B V"], Cache]:
    """Scores the known tokens that the cache lacks, many after a pause in drafting."""
    net, count = context.networks["draft"], context.behind
    cache = state.drafter_state.cache
    if context.policy.may_rest:
      ends = state.lengths - count
      cache = caught_up(net.extend, cache, state.sequences, ends)
    return read_last(net, cache, state.sequences, state.lengths, count)

  def next_state(self, cache: Cache, state: DecodeState) -> StepwiseState:
    """Returns the state with the draft's cache, and the number of known tokens."""
    return StepwiseState(cache, state.lengths)

  def commit(
    self,
    context: Context,
    drafter_state: StepwiseState,
    verdict: Verdict,
    features: Float[Array, "B N D"],
  ) -> StepwiseState:
    """Returns the state with the cache rolled back to the accepted tokens."""
    cache = drafter_state.cache
    index = jnp.minimum(cache.index, drafter_state.num_known + verdict.last)
    return drafter_state.replace(cache=cache.at(index))
