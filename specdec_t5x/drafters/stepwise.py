"""Drafting token by token, one call of a network per token, up to a length.

A row's number of drafted tokens is a stopping time: whether token i counts is decided
before token i is drawn. Every rule therefore keeps its guarantee (docs/math.md).

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
  """A drafter's gamma if the user gave no gamma.

  `dataclasses.replace` keeps the type, so a copy of a drafter still has the default.
  """


GAMMA = Knob(
  whole(1),
  "maximum draft length",
  "GAMMA",
  "To decode without speculation, use configs/baseline_*.gin, or no draft.",
)


def gamma_knob(usual: int = DEFAULT_GAMMA) -> Any:
  """Returns the field `gamma` of a drafter, with `usual` as the default."""
  return declared(DefaultGamma(usual), GAMMA)


@flax.struct.dataclass
class StepwiseState:
  """The drafter's state.

  Attributes:
    cache: the draft model's cache.
    known: the rows' lengths at the last proposal.
  """

  cache: Cache
  known: Int[Array, "B"]


@flax.struct.dataclass
class _Draft:
  """A draft while it grows.

  Attributes:
    cache: the cache for `Stepwise.extend`; the last token is not in the cache.
    tokens: the drawn tokens, zeros beyond `drawn`.
    probs: the distribution of each token, zeros beyond `drawn`; None if tokens are
      certain.
    drawn: the number of drawn tokens in every row.
    size: the number of tokens that count.
    going: whether each row may get another token.
  """

  cache: Any
  tokens: Int[Array, "B G"]
  probs: Float[Array, "B G V"] | None
  drawn: Int[Array, ""]
  size: Int[Array, "B"]
  going: Bool[Array, "B"]


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
    """Returns the drafting network's `extend`."""

  @abc.abstractmethod
  def read(
    self, context: Context, state: DecodeState
  ) -> tuple[Float[Array, "B V"], Cache]:
    """Returns the logits after the known tokens, and a cache of the known tokens."""

  def carried(self, cache: Cache, state: DecodeState) -> Any:
    """Returns the drafter's state after a draft, given the draft's cache; here None."""
    del cache, state

  def default_policy(self, is_named: bool) -> str:
    """Returns 'auto', based on times, for a drafter chosen by name; else 'fixed'."""
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
    logits, cache = self.read(context, state)
    shape = uniforms.shape[:2]
    certain = context.sampling.certain
    draft = _Draft(
      cache=cache,
      tokens=jnp.zeros(shape, jnp.int32),
      probs=None if certain else jnp.zeros((*shape, logits.shape[-1])),
      drawn=jnp.zeros((), jnp.int32),
      size=jnp.zeros_like(lengths),
      going=lengths > 0,
    )

    def draft_next(draft):
      last = _column(draft.tokens, draft.drawn - 1)
      logits, _, cache = extend(draft.cache, last[:, None])
      draft = draft.replace(cache=cache)
      return self._grown(context, draft, logits[:, 0], uniforms, lengths)

    draft = self._grown(context, draft, logits, uniforms, lengths)
    # A row goes on only while the row has fewer than `lengths` <= G tokens.
    draft = jax.lax.while_loop(lambda draft: draft.going.any(), draft_next, draft)
    proposal = Proposal.chain(draft.tokens, draft.probs, draft.size)
    return proposal, self.carried(draft.cache, state)

  def _grown(self, context, draft, logits, uniforms, lengths) -> _Draft:
    """Returns the draft with one more token per row, valid in rows with `going`."""
    draws = _column(uniforms, draft.drawn)
    token, distribution = drawn(logits, context, draws)
    tokens = _with_column(draft.tokens, token, draft.drawn)
    probs = draft.probs
    if probs is not None:
      probs = _with_column(probs, distribution, draft.drawn)
    size = draft.size + draft.going.astype(jnp.int32)
    return draft.replace(
      tokens=tokens,
      probs=probs,
      drawn=draft.drawn + 1,
      size=size,
      going=draft.going & ~is_end(token, context.eos_id) & (size < lengths),
    )


def is_gamma_given(drafter: Drafter) -> bool:
  """Returns whether a drafter was built with a gamma other than the default."""
  gamma = getattr(drafter, "gamma", None)
  return gamma is not None and not isinstance(gamma, DefaultGamma)


def drawn(logits: Float[Array, "B V"], context, uniforms: Float[Array, "B L"]):
  """Returns a token and the token's distribution; None for a certain token."""
  if context.sampling.certain:
    scores = perturbed(logits, context.sampling, uniforms, context.adjust)
    return likeliest(scores), None
  return draw(logits, context.sampling, uniforms, context.adjust)


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
