"""Drafting token by token, one call of a network per token, up to a length.

A row's number of drafted tokens is a stopping time: whether token i counts is decided
before token i is drawn. Every rule therefore keeps its guarantee (docs/math.md).

A row's known tokens are the first `DecodeState.lengths` tokens of the row's sequence:
the start token, the prompt and the output so far.

Shapes: B rows, G gamma (the longest draft), N = G + 1, V vocabulary, L uniforms per
decision.
"""

import abc
from typing import Any

import flax.struct
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from specdec_t5x.core import tree
from specdec_t5x.core.checks import check_uniforms
from specdec_t5x.core.distributions import argmax, certain_log_prob, draw, perturbed
from specdec_t5x.core.ends import is_end
from specdec_t5x.core.knobs import Knob, declared, whole
from specdec_t5x.core.types import Cache, ExtendFn, Proposal
from specdec_t5x.decoding.context import Context
from specdec_t5x.decoding.drafter import Drafter, Stops
from specdec_t5x.decoding.state import DecodeState

DEFAULT_GAMMA = 5


class DefaultGamma(int):
  """Marks a drafter's gamma as the default, not the user's choice.

  `dataclasses.replace` keeps the type, so a copy of a drafter keeps the mark.
  """


GAMMA = Knob(
  check=whole(1),
  about="maximum draft length",
  macro="GAMMA",
  fix="To decode without speculation, use configs/baseline_*.gin, or no draft.",
)


def gamma_knob(default: int = DEFAULT_GAMMA) -> Any:
  """Returns the dataclass field `gamma` of a drafter."""
  return declared(DefaultGamma(default), GAMMA)


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


@flax.struct.dataclass
class _Draft:
  """The drafts of all rows while they grow, one token per iteration.

  All rows get a token in each iteration, until no row may grow. The surplus tokens of
  rows that have stopped before are not valid.

  Attributes:
    cache: the cache for `Stepwise.extend`; the last token is not in the cache.
    tokens: the drawn tokens, zeros beyond `num_drawn`.
    probs: the distribution of each token, zeros beyond `num_drawn`; None if tokens are
      certain.
    num_drawn: the number of drawn tokens, the same in all rows.
    num_valid: the number of each row's valid tokens.
    may_grow: whether each row may get another valid token.
  """

  cache: Any
  tokens: Int[Array, "B G"]
  probs: Float[Array, "B G V"] | None
  num_drawn: Int[Array, ""]
  num_valid: Int[Array, "B"]
  may_grow: Bool[Array, "B"]


class Stepwise(Drafter):
  """The base of drafters that draft a chain token by token.

  Attributes:
    gamma: the most tokens of a draft.
  """

  gamma: int

  stops = Stops.AT_LENGTH
  resumes = True

  @abc.abstractmethod
  def extend(self, context: Context) -> ExtendFn:
    """Returns the drafting network's `extend`, which the draft calls with one token."""

  @abc.abstractmethod
  def first_logits(
    self, context: Context, state: DecodeState
  ) -> tuple[Float[Array, "B V"], Cache]:
    """Returns the logits of the first drafted token, and the cache for `extend`.

    Scores the known tokens that the cache lacks. The returned cache lacks none.
    """

  def next_state(self, cache: Cache, state: DecodeState) -> Any:
    """Returns the drafter's state after a draft, given the last cache of `extend`."""
    del cache, state

  def default_policy(self, is_named: bool) -> str:
    """Returns 'auto' if a gin file or a name asked for the drafter; else 'fixed'."""
    return "auto" if is_named else "fixed"

  @property
  def tree(self) -> tree.Tree:
    """A chain of gamma tokens."""
    return tree.chain(self.gamma)

  def propose(
    self, context: Context, state: DecodeState, uniforms: Float[Array, "B G L"]
  ) -> tuple[Proposal, Any]:
    """Drafts until every row has stopped; see `decoding.drafter.Drafter`."""
    check_uniforms(uniforms, self.gamma)
    lengths = context.draft_lengths(state, self.lengths)
    extend = self.extend(context)
    logits, cache = self.first_logits(context, state)
    shape = uniforms.shape[:2]
    certain = context.sampling.certain
    draft = _Draft(
      cache=cache,
      tokens=jnp.zeros(shape, jnp.int32),
      probs=None if certain else jnp.zeros((*shape, logits.shape[-1])),
      num_drawn=jnp.zeros((), jnp.int32),
      num_valid=jnp.zeros_like(lengths),
      may_grow=lengths > 0,
    )

    def draft_next(draft):
      last = _column(draft.tokens, draft.num_drawn - 1)
      logits, _, cache = extend(draft.cache, last[:, None])
      draft = draft.replace(cache=cache)
      return self._with_token(context, draft, logits[:, 0], uniforms, lengths)

    draft = self._with_token(context, draft, logits, uniforms, lengths)
    # The loop ends after at most G tokens, because a row may grow only while the row
    # has fewer than `lengths` <= G valid tokens.
    draft = jax.lax.while_loop(lambda draft: draft.may_grow.any(), draft_next, draft)
    proposal = Proposal.chain(draft.tokens, draft.probs, draft.num_valid)
    return proposal, self.next_state(draft.cache, state)

  def _with_token(self, context, draft, logits, uniforms, lengths) -> _Draft:
    """Returns the draft with one more token per row, valid in rows that may grow."""
    place = draft.num_drawn
    token, distribution = draw_token(logits, context, _column(uniforms, place))
    tokens = _with_column(draft.tokens, token, place)
    probs = draft.probs
    if probs is not None:
      probs = _with_column(probs, distribution, place)
    num_valid = draft.num_valid + draft.may_grow.astype(jnp.int32)
    ended = is_end(token, context.eos_id)
    return draft.replace(
      tokens=tokens,
      probs=probs,
      num_drawn=place + 1,
      num_valid=num_valid,
      may_grow=draft.may_grow & ~ended & (num_valid < lengths),
    )


def is_gamma_given(drafter: Drafter) -> bool:
  """Returns whether the user gave a drafter's gamma, even if equal to the default."""
  gamma = getattr(drafter, "gamma", None)
  return gamma is not None and not isinstance(gamma, DefaultGamma)


def draw_token(
  logits: Float[Array, "B V"], context: Context, uniforms: Float[Array, "B L"]
) -> tuple[Int[Array, "B"], Float[Array, "B V"] | None]:
  """Draws tokens; returns the tokens, and q or None for `Sampling.certain` tokens."""
  if context.sampling.certain:
    scores = perturbed(logits, context.sampling, uniforms, context.adjust)
    return likeliest(scores), None
  return draw(logits, context.sampling, uniforms, context.adjust)


# The name of `draw_token` in version 0.1.
drawn = draw_token


def likeliest(logits: Float[Array, "*batch V"]) -> Int[Array, "*batch"]:
  """Returns the argmax; -1, which is no token, if a logit is NaN or infinity."""
  token = argmax(logits).astype(jnp.int32)
  return jnp.where(jnp.isnan(certain_log_prob(logits)), -1, token)


def _column(rows: Array, at: Int[Array, ""]) -> Array:
  """Returns the entry at index `at` of each row."""
  return jax.lax.dynamic_index_in_dim(rows, at, 1, keepdims=False)


def _with_column(rows: Array, column: Array, at: Int[Array, ""]) -> Array:
  """Returns the rows with a new entry at index `at`."""
  return jax.lax.dynamic_update_index_in_dim(rows, column, at, axis=1)
