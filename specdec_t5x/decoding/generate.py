"""The speculative loop: one compiled program from the encoded input to the output."""

from collections.abc import Callable

import jax

from specdec_t5x.decoding.state import Decoded, DecodeState, no_info
from specdec_t5x.decoding.step import Speculation, step

LoopFn = Callable  # The signature of jax.lax.while_loop.


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

  def unfinished(carry):
    state, _ = carry
    return ~state.ended.all()

  def iterate(carry):
    state, statistics = carry
    state, info = step(spec, state)
    return state, jax.tree.map(lambda total, new: total + new, statistics, info)

  rows = state.lengths.shape[0]
  state, statistics = loop(unfinished, iterate, (state, no_info(rows)))
  return Decoded(state.outputs(spec.context.max_length), state.scores, statistics)


def python_loop(condition, body, carry):
  """Runs a loop like `jax.lax.while_loop`, but in Python: the oracle for tests."""
  while condition(carry):
    carry = body(carry)
  return carry
