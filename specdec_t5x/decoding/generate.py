"""The speculative loop: one compiled program from the encoded input to the output."""

import jax
from jaxtyping import Array, Int

from specdec_t5x.decoding import baseline
from specdec_t5x.decoding.queue import Carry, Queue
from specdec_t5x.decoding.state import Decoded, DecodeState, LoopFn, StepInfo
from specdec_t5x.decoding.step import Speculation, decisions, step


def generate(
  spec: Speculation,
  state: DecodeState,
  loop: LoopFn = jax.lax.while_loop,
  queue: Queue | None = None,
) -> Decoded:
  """Decodes until every row has ended.

  Args:
    spec: how to decode; static.
    state: where to start.
    loop: `jax.lax.while_loop`, or `python_loop` to watch it work.
    queue: what the rows take when they end; None is nothing.

  Returns:
    The output with its statistics, of all that was queued; its law is the one that
    `spec.rule` guarantees.
  """
  drafter, context = spec.drafter, spec.context

  def refilled(new, old):
    return drafter.knowing(new, drafter.known(old))

  def rests(carry):
    return carry.unfinished() & drafter.rests(context, carry.state)

  def drafts(carry):
    return carry.unfinished() & ~drafter.rests(context, carry.state)

  def speculate(carry):
    return carry.then(*step(spec, carry.state), refilled)

  def rest(carry):
    return carry.then(*_rest(spec, carry.state), refilled)

  def take_turns(carry):
    return loop(rests, rest, loop(drafts, speculate, carry))

  body = take_turns if drafter.may_rest else speculate
  carry = loop(Carry.unfinished, body, Carry.first(state, queue))
  decoded = carry.decoded(context.max_length)
  if queue is not None:
    return decoded
  return decoded.replace(known=drafter.known(carry.state.drafter_state))


def _rest(spec: Speculation, state: DecodeState) -> tuple[DecodeState, StepInfo]:
  """Does what `step` does where no row drafts: one token of the target, and its draw.

  So whether the others of a row's batch draft changes no sample of a row that does not.
  """
  context = spec.context
  state, info = baseline.step(
    context.target,
    context.sampling,
    state,
    context.max_length,
    context.eos_id,
    decision=decisions(spec.drafter) - 1,
  )
  rested = spec.drafter.rested(state.drafter_state)
  return state.replace(drafter_state=rested), info


def python_loop(condition, body, carry):
  """Runs a loop like `jax.lax.while_loop`, but in Python: the oracle for tests."""
  while condition(carry):
    carry = body(carry)
  return carry


def at_most(count: Int[Array, ""]) -> LoopFn:
  """Returns a loop that stops after so many iterations, for those that time them."""

  def loop(condition, body, carry):
    go_on = lambda carry: condition(carry) & (carry.state.iteration.max() < count)
    return jax.lax.while_loop(go_on, body, carry)

  return loop
