"""The parts of an iteration, each repeated in a separate compiled loop.

A part runs `count` times on the arrays that the loop carries. XLA can't skip or hoist a
repetition: each repetition reads a zero that depends on all previous results.

Shapes: B rows, G drafted nodes, N = G + 1, V vocabulary.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from specdec_t5x.core import tree
from specdec_t5x.core.types import ExtendFn, Proposal
from specdec_t5x.decoding import loop as verbs
from specdec_t5x.decoding.contracts import Context, decisions_of
from specdec_t5x.decoding.loop import generate, score_tree
from specdec_t5x.decoding.state import DecodeState
from specdec_t5x.tuning import at_most

NEVER = -1  # An EOS id that no token has.

# (*arguments) -> the speculation or plain decoding, and the loop's first state.
Prepare = Callable[..., tuple[Context, DecodeState]]
# (state, 0) -> (state, 0): a repetition of a part.
Step = Callable[[DecodeState, jax.Array], tuple[DecodeState, jax.Array]]


def part_programs(prepare: Prepare) -> dict[str, Callable[..., Any]]:
  """Returns compiled programs that each repeat a part of an iteration.

  Returns:
    By name, functions of (count, *arguments): "iteration" runs the loop for at most
    `count` iterations, until all rows end; "draft" is the drafter's proposal, "scoring"
    the target's call on the draft's N nodes, "token" the target's call on one node, and
    "verification" all steps after the logits. Plain decoding has only "iteration".
  """
  return {
    "draft": _repeating(_draft, prepare),
    "scoring": _repeating(_scoring, prepare),
    "token": _repeating(_token, prepare),
    "verification": _repeating(_verification, prepare),
    "iteration": iterated(prepare),
  }


def call_program(
  prepare: Callable[..., tuple[ExtendFn, DecodeState]], width: int
) -> Callable[..., Any]:
  """Returns a compiled program (count, *arguments) that calls a network `count` times.

  Args:
    prepare: returns the network, and a state with the network's cache.
    width: the number of tokens per call.
  """

  def part(extend, state):
    return _score(state, extend, tree.chain(width - 1))

  return _repeating(part, prepare)


def iterated(prepare: Prepare, redrafts: bool = False) -> Callable[..., Any]:
  """Returns a compiled program (count, *arguments) of `count` iterations or tokens.

  Args:
    prepare: returns the speculation or plain decoding, and the first state.
    redrafts: whether each iteration drafts twice and discards the first draft. The
      difference to the program without redrafts is the time of a draft in the loop.
  """

  @jax.jit
  def run(count, *arguments):
    decoding, state = prepare(*arguments)
    loop = at_most(count)
    return generate(decoding, state, _redrafting(decoding, loop) if redrafts else loop)

  return run


def _redrafting(spec, loop):
  def run(condition, body, carry):
    def draft_twice(carry):
      zero = jnp.zeros((), jnp.int32)
      state, zero = _draft(spec, carry.state)(carry.state, zero)
      return body(carry.replace(state=state.replace(lengths=state.lengths + zero)))

    return loop(condition, draft_twice, carry)

  return run


def _repeating(part, prepare):
  @jax.jit
  def run(count, *arguments):
    spec, state = prepare(*arguments)
    step = part(spec, state)
    carry = state, jnp.zeros((), jnp.int32)
    return jax.lax.fori_loop(0, count, lambda _, carry: step(*carry), carry)[1]

  return run


def _draft(spec, state) -> Step:
  uniforms = verbs.draws(spec, state)[:, : decisions_of(spec.drafter)]

  def step(state, zero):
    longer = state.replace(lengths=state.lengths + zero)
    proposal, drafter_state = spec.drafter.propose(spec, longer, uniforms)
    return state.replace(drafter_state=drafter_state), _zero(proposal)

  return step


def _scoring(spec, state) -> Step:
  return _score(state, spec.target.extend, spec.drafter.tree)


def _token(spec, state) -> Step:
  return _score(state, spec.target.extend, tree.chain(0))


def _score(state, extend, shape) -> Step:
  tokens = jnp.zeros((state.lengths.size, shape.size), jnp.int32)

  def step(state, zero):
    cache = state.target_cache.at(state.lengths - 1)
    proposal = Proposal(tokens + zero, None, tokens == 0, shape)
    logits, _, cache = score_tree(extend, cache, state.last_tokens() + zero, proposal)
    return state.replace(target_cache=cache), _zero(logits)

  return step


def _verification(spec, state) -> Step:
  uniforms = verbs.draws(spec, state)
  _, proposal = verbs.draft(spec, state, uniforms)
  _, logits, features = verbs.score(spec, state, proposal)

  def step(state, zero):
    iteration = verbs.verify(spec, proposal, logits + zero, uniforms)
    new, iteration = verbs.commit(spec, state, iteration, features)
    # The caches are left out, as verification does not read the caches.
    results = new.sequences, new.lengths, new.ended, new.scores, iteration.info
    return state, _zero(results)

  return step


def _zero(results):
  """Returns 0, such that the compiler needs all results to compute the 0."""
  leaves = jax.tree.leaves(jax.lax.optimization_barrier(results))
  # No result is -12345.
  is_impossible = [leaf.ravel()[-1] == -12345 for leaf in leaves]
  return jnp.stack(is_impossible).any().astype(jnp.int32)
