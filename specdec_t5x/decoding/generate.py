"""The speculative loop: one compiled program from the encoded input to the output."""

from typing import Any, Protocol, runtime_checkable

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Int

from specdec_t5x.decoding import baseline, batching
from specdec_t5x.decoding.baseline import Plain, PlainIteration
from specdec_t5x.decoding.state import Carry, Decoded, DecodeState, LoopFn
from specdec_t5x.decoding.step import Iteration, Speculation, decisions, step


@runtime_checkable
class Observer(Protocol):
  """Records iterations, in arrays with a row for each output."""

  def start(self, rows: int, max_length: int) -> Any:
    """Returns the record before the first iteration."""

  def observe(
    self, record: Any, before: DecodeState, iteration: Iteration | PlainIteration
  ) -> Any:
    """Returns the record after one more iteration.

    Args:
      record: the record so far.
      before: the state at the beginning of the iteration.
      iteration: the iteration.
    """


def generate(
  spec: Speculation,
  state: DecodeState,
  loop: LoopFn = jax.lax.while_loop,
  queue: Any = None,
  observe: Observer | None = None,
) -> Decoded:
  """Decodes with speculation until every row has ended.

  Args:
    spec: how to decode; static.
    state: where to start.
    loop: `jax.lax.while_loop`, or an equivalent that can be watched.
    queue: further inputs for ended rows (`decoding.batching`), or None.
    observe: records the iterations with drafts, in `Decoded.observed`.

  Returns:
    The outputs with statistics, including those of the queue. `spec.rule` guarantees
    the distribution of outputs.
  """
  policy = spec.context.policy

  def drafts(carry):
    may_draft = ~_rests(spec, carry.state) if policy.may_rest else True
    return carry.can_iterate() & may_draft

  def rests(carry):
    return carry.can_iterate() & _rests(spec, carry.state)

  def speculate(carry):
    state, iteration = step(spec, carry.state)
    return carry.then(state, iteration, observe)

  def rest(carry):
    state, iteration = _rest(spec, carry.state)
    return carry.then(state, iteration)

  def take_turn(carry):
    carry = batching.refill(carry, policy.refill)
    carry = loop(drafts, speculate, carry)
    return loop(rests, rest, carry) if policy.may_rest else carry

  carry = Carry.first(state, spec.context.max_length, queue, observe)
  return loop(Carry.is_unfinished, take_turn, carry).decoded()


def generate_plain(
  plain: Plain,
  state: DecodeState,
  loop: LoopFn = jax.lax.while_loop,
  queue: Any = None,
  observe: Observer | None = None,
) -> Decoded:
  """Decodes a token for each call of the target until every row has ended.

  Args:
    plain: how to decode.
    state: where to start, made for a gamma of `plain.block` - 1.
    loop: as for `generate`.
    queue: as for `generate`.
    observe: records the iterations, in `Decoded.observed`.

  Returns:
    The outputs; their statistics count calls and tokens, and no drafts.
  """

  def decode_token(carry):
    state, iteration = baseline.step(plain, carry.state)
    return carry.then(state, iteration, observe)

  def take_turn(carry):
    carry = batching.refill(carry)
    return loop(Carry.can_iterate, decode_token, carry)

  carry = Carry.first(state, plain.max_length, queue, observe)
  return loop(Carry.is_unfinished, take_turn, carry).decoded()


def _rests(spec: Speculation, state: DecodeState) -> Bool[Array, ""]:
  """Returns whether no row drafts in the next iteration."""
  lengths = spec.context.draft_lengths(state, spec.drafter.lengths)
  rests = ~(lengths > 0).any()
  if spec.drafter.resumes:
    return rests
  # A drafter that does not resume lacks tokens of a rest until the row has ended.
  return rests | (state.has_rested & ~state.ended).any()


def _rest(spec: Speculation, state: DecodeState) -> tuple[DecodeState, PlainIteration]:
  """Runs one iteration without a draft.

  The token has the draw of the token after an empty draft. A row that does not draft
  gets the same sample whether or not other rows draft.
  """
  context = spec.context
  plain = Plain(
    context.target.extend,
    context.sampling,
    context.max_length,
    context.eos_id,
    context.adjust,
    decision=decisions(spec.drafter) - 1,
  )
  state, iteration = baseline.step(plain, state)
  policy_state = context.policy.update(state.policy_state, iteration.info)
  has_rested = jnp.ones_like(state.has_rested)
  return state.replace(policy_state=policy_state, has_rested=has_rested), iteration


def at_most(count: Int[Array, ""]) -> LoopFn:
  """Returns a loop that stops after `count` iterations, for measurements."""

  def loop(condition, body, carry):
    def goes_on(carry):
      return condition(carry) & (carry.state.iteration.max() < count)

    return jax.lax.while_loop(goes_on, body, carry)

  return loop
