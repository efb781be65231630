"""The speculative loop: one compiled program from the encoded input to the output."""

import jax
import jax.numpy as jnp

from specdec_t5x.decoding import baseline
from specdec_t5x.decoding.state import Decoded, DecodeState, LoopFn, StepInfo, no_info
from specdec_t5x.decoding.step import Speculation, step


def generate(
  spec: Speculation, state: DecodeState, loop: LoopFn = jax.lax.while_loop
) -> Decoded:
  """Decodes until every row has ended.

  Args:
    spec: how to decode; static.
    state: where to start.
    loop: `jax.lax.while_loop`, or `python_loop` to watch it work.

  Returns:
    The output with its statistics; its law is the one that `spec.rule` guarantees.
  """
  drafter, context = spec.drafter, spec.context

  def unfinished(carry):
    return ~carry[0].ended.all()

  def rests(carry):
    return unfinished(carry) & drafter.rests(context, carry[0])

  def drafts(carry):
    return unfinished(carry) & ~drafter.rests(context, carry[0])

  def speculate(carry):
    return _counted(carry, *step(spec, carry[0]))

  def rest(carry):
    return _counted(carry, *_rest(spec, carry[0]))

  def take_turns(carry):
    return loop(rests, rest, loop(drafts, speculate, carry))

  start = state, no_info(state.lengths.shape[0])
  body = take_turns if drafter.may_rest else speculate
  state, statistics = loop(unfinished, body, start)
  return Decoded(state.outputs(context.max_length), state.scores, statistics)


def _rest(spec: Speculation, state: DecodeState) -> tuple[DecodeState, StepInfo]:
  """Does what `step` does where no row drafts: one token of the target, and its draw.

  So whether the others of a row's batch draft changes no sample of a row that does not.
  """
  context, live = spec.context, ~state.ended
  state, log_prob = baseline.step(
    context.target,
    context.sampling,
    state,
    context.max_length,
    context.eos_id,
    decision=2 * spec.drafter.tree.size,
  )
  state = state.replace(drafter_state=spec.drafter.rested(state.drafter_state))
  one = live.astype(jnp.int32)
  info = no_info(live.size).replace(target_calls=one, emitted=one, log_prob=log_prob)
  return state, info


def _counted(carry, state, info):
  """Returns the state, and the statistics with those of one more iteration."""
  return state, jax.tree.map(lambda total, new: total + new, carry[1], info)


def python_loop(condition, body, carry):
  """Runs a loop like `jax.lax.while_loop`, but in Python: the oracle for tests."""
  while condition(carry):
    carry = body(carry)
  return carry
