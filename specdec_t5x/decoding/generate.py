"""The speculative loop: one compiled program from the encoded input to the output."""

from collections.abc import Mapping
from typing import Any, Protocol, runtime_checkable

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Int

from specdec_t5x.decoding import baseline
from specdec_t5x.decoding.state import Carry, Decoded, DecodeState, LoopFn, StepInfo
from specdec_t5x.decoding.step import Iteration, Speculation, decisions, draws, iterate


@runtime_checkable
class Observer(Protocol):
  """Keeps something of each iteration: arrays that have a row each."""

  def start(self, rows: int, max_length: int) -> Any:
    """Returns what is kept before the first iteration."""

  def observe(self, kept: Any, before: DecodeState, iteration: Iteration) -> Any:
    """Returns what is kept after one more iteration.

    Args:
      kept: so far.
      before: the state that the iteration began with.
      iteration: the proposal, its verdict, distributions, uniforms and counts.
    """


@runtime_checkable
class Keeper(Observer, Protocol):
  """An observer that a decoder holds (`SpeculativeDecoder.observer`)."""

  def check(self, target: Any, num_decodes: int = 1) -> None:
    """Raises a ValueError where it can't watch this target, or so many decodes."""

  def auxiliary(self, kept: Any, given: Mapping[str, Array]) -> dict[str, Array]:
    """Returns what T5X's models add to their auxiliary values.

    Args:
      kept: of the outputs, an entry a row.
      given: the inputs [B, E], as 'encoder_inputs', and in T5X's `infer` whose samples
        rows are.
    """


def generate(
  spec: Speculation,
  state: DecodeState,
  loop: LoopFn = jax.lax.while_loop,
  queue: Any = None,
  observe: Observer | None = None,
) -> Decoded:
  """Decodes until every row has ended.

  Args:
    spec: how to decode; static.
    state: where to start.
    loop: `jax.lax.while_loop`, or what does the same and can be watched.
    queue: what rows take when they end (`decoding.batching`); None is nothing.
    observe: is given each iteration that drafts; what it keeps is `Decoded.observed`.

  Returns:
    The output with its statistics, of all that was queued; its distribution is the one
    that `spec.rule` guarantees.
  """
  context = spec.context
  if observe and state.observed is None:
    kept = observe.start(state.lengths.shape[0], context.max_length)
    state = state.replace(observed=kept)

  def rests(carry):
    return carry.unfinished() & _rests(spec, carry.state)

  def drafts(carry):
    return carry.unfinished() & ~_rests(spec, carry.state)

  def speculate(carry):
    state, iteration = iterate(spec, carry.state, draws(spec, carry.state))
    if observe:
      kept = observe.observe(carry.state.observed, carry.state, iteration)
      state = state.replace(observed=kept)
    return carry.then(state, iteration.info)

  def rest(carry):
    return carry.then(*_rest(spec, carry.state))

  def alternate(carry):
    return loop(rests, rest, loop(drafts, speculate, carry))

  body = alternate if context.policy.may_rest else speculate
  run = lambda carry: loop(Carry.unfinished, body, carry)
  carry = Carry.first(state, queue).finished(run, loop, context.policy.refilled)
  return carry.decoded(context.max_length)


def _rests(spec: Speculation, state: DecodeState) -> Bool[Array, ""]:
  """Returns whether no row drafts in the next iteration.

  What a drafter lacks that does not resume it lacks until its row has ended.
  """
  rests = ~(spec.context.most(state, spec.drafter.lengths) > 0).any()
  if spec.drafter.resumes:
    return rests
  return rests | (state.has_rested & ~state.ended).any()


def _rest(spec: Speculation, state: DecodeState) -> tuple[DecodeState, StepInfo]:
  """Does what `step` does where no row drafts: one token of the target, and its draw.

  So whether the others of a row's batch draft changes no sample of a row that does not.
  """
  context = spec.context
  state, info = baseline.step(
    context.target.extend,
    context.sampling,
    state,
    context.max_length,
    context.eos_id,
    context.adjust,
    decision=decisions(spec.drafter) - 1,
  )
  return state.replace(
    policy_state=context.policy.learn(state.policy_state, info),
    has_rested=jnp.ones_like(state.has_rested),
  ), info


def at_most(count: Int[Array, ""]) -> LoopFn:
  """Returns a loop that stops after so many iterations, for those that time them."""

  def loop(condition, body, carry):
    go_on = lambda carry: condition(carry) & (carry.state.iteration.max() < count)
    return jax.lax.while_loop(go_on, body, carry)

  return loop
