"""Drafting a token after the other, each by a call of a network, up to a length.

A row's number of drafted tokens is a stopping time: whether token i counts is settled
before token i is drawn. So every rule keeps its guarantee (docs/math.md).

Shapes: B rows, G gamma (the longest draft), N = G + 1, V vocabulary, L uniforms a
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
from specdec_t5x.core.distributions import (
  argmax,
  certain_log_prob,
  draw,
  perturbed,
)
from specdec_t5x.core.ends import is_end
from specdec_t5x.core.knobs import Knob, declared, whole
from specdec_t5x.core.types import Cache, ExtendFn, Proposal
from specdec_t5x.decoding.context import Context
from specdec_t5x.decoding.drafter import Drafter, Stops
from specdec_t5x.decoding.state import DecodeState

DEFAULT_GAMMA = 5


class DefaultGamma(int):
  """A drafter's gamma where none was given.

  `dataclasses.replace` keeps the type, so copies of a drafter have none given either.
  """


GAMMA = Knob(
  whole(1),
  "most tokens of a draft",
  "GAMMA",
  "For decoding without speculation use configs/baseline_*.gin, or no draft.",
)


def gamma_knob(usual: int = DEFAULT_GAMMA) -> Any:
  """Returns the field `gamma` of a drafter, with its usual value as the default."""
  return declared(DefaultGamma(usual), GAMMA)


@flax.struct.dataclass
class StepwiseState:
  """What the drafter carries.

  Attributes:
    cache: the draft model's.
    known: how long the rows were at the last proposal.
  """

  cache: Cache
  known: Int[Array, "B"]


@flax.struct.dataclass
class _Draft:
  """A draft while it grows.

  Attributes:
    cache: what `Stepwise.extend` goes on from; it lacks the last token.
    tokens: drawn tokens, zeros beyond `drawn`.
    probs: the distribution of each, zeros beyond `drawn`; None of certain tokens.
    drawn: how many tokens were drawn, in every row.
    size: how many of them count.
    going: which rows may have another one.
  """

  cache: Any
  tokens: Int[Array, "B G"]
  probs: Float[Array, "B G V"] | None
  drawn: Int[Array, ""]
  size: Int[Array, "B"]
  going: Bool[Array, "B"]


class Stepwise(Drafter):
  """What drafters of chains that go on token by token have in common.

  Attributes:
    gamma: most tokens a draft.
  """

  gamma: int

  stops = Stops.AT_LENGTH
  resumes = True

  @abc.abstractmethod
  def extend(self, context: Context) -> ExtendFn:
    """Returns what drafts."""

  @abc.abstractmethod
  def read(
    self, context: Context, state: DecodeState
  ) -> tuple[Float[Array, "B V"], Cache]:
    """Returns the logits after the known tokens, and a cache that holds these."""

  def carried(self, cache: Cache, state: DecodeState) -> Any:
    """Returns the drafter's state after a draft that left this cache: here none."""
    del cache, state

  def default_policy(self, is_named: bool) -> str:
    """Returns 'auto' for a named drafter, which drafts as much as pays."""
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
    # A row goes on only while it has fewer than `lengths` <= G tokens.
    draft = jax.lax.while_loop(lambda draft: draft.going.any(), draft_next, draft)
    proposal = Proposal.chain(draft.tokens, draft.probs, draft.size)
    return proposal, self.carried(draft.cache, state)

  def _grown(self, context, draft, logits, uniforms, lengths) -> _Draft:
    """Returns the draft with one more token a row, counted where the row goes on."""
    going = draft.going
    draws = jax.lax.dynamic_index_in_dim(uniforms, draft.drawn, 1, keepdims=False)
    new = drawn(logits, context, draws)
    put = lambda buffer, new: jax.lax.dynamic_update_index_in_dim(
      buffer, new, draft.drawn, axis=1
    )
    tokens, probs = jax.tree.map(put, (draft.tokens, draft.probs), new)
    size = draft.size + going.astype(jnp.int32)
    return draft.replace(
      tokens=tokens,
      probs=probs,
      drawn=draft.drawn + 1,
      size=size,
      going=going & ~is_end(new[0], context.eos_id) & (size < lengths),
    )


def is_gamma_given(drafter: Drafter) -> bool:
  """Returns whether a drafter was built with a gamma, rather than its default."""
  gamma = getattr(drafter, "gamma", None)
  return gamma is not None and not isinstance(gamma, DefaultGamma)


def drawn(logits: Float[Array, "B V"], context, uniforms: Float[Array, "B L"]):
  """Returns a token and what it was drawn from, None of a certain one."""
  if context.sampling.certain:
    given = context.sampling, uniforms, context.adjust
    return likeliest(perturbed(logits, *given)), None
  return draw(logits, context.sampling, uniforms, context.adjust)


def likeliest(logits: Float[Array, "*batch V"]) -> Int[Array, "*batch"]:
  """Returns argmax; -1, which is no token, where the logits are no numbers."""
  token = argmax(logits).astype(jnp.int32)
  return jnp.where(jnp.isnan(certain_log_prob(logits)), -1, token)


def _column(rows: Array, at: Int[Array, ""]) -> Array:
  """Returns one entry of each row."""
  return jax.lax.dynamic_index_in_dim(rows, at, 1, keepdims=False)
