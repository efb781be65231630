"""What a decoding loop carries from turn to turn; and more inputs than rows.

A batch lasts as long as its slowest row. With a queue, a row that ends takes the next
input: outputs are the same, whatever the number of rows.

Shapes: B rows, R inputs' rows in all, T output length, S sequence buffer.
"""

from collections.abc import Callable, Sequence
from typing import Any

import flax.struct
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Int

from specdec_t5x.decoding.state import Decoded, DecodeState, StepInfo, no_info


@flax.struct.dataclass
class Queue:
  """The first states of all that is to be decoded, and what became of them.

  Attributes:
    starts: a row each; caches hold what comes before the output, and no more.
    holds: which of them each row of the loop has; R where it has none.
    next: the first that no row took yet.
    done: what was decoded; zeros where it is not yet.
  """

  starts: DecodeState
  holds: Int[Array, "B"]
  next: Int[Array, ""]
  done: Decoded

  @property
  def size(self) -> int:
    """How many rows there are to decode in all."""
    return self.starts.lengths.shape[0]


@flax.struct.dataclass
class Carry:
  """A state, the sum of its iterations' counts, and what waits; None is nothing."""

  state: DecodeState
  statistics: StepInfo
  queue: Queue | None

  @classmethod
  def first(cls, state: DecodeState, queue: Queue | None = None) -> "Carry":
    """Returns what the loop starts with."""
    return cls(state, no_info(state.lengths.shape[0]), queue)

  def unfinished(self) -> Bool[Array, ""]:
    """Returns whether any row goes on."""
    return ~self.state.ended.all()

  def then(
    self,
    state: DecodeState,
    info: StepInfo,
    refilled: Callable[[Any, Any], Any] = lambda new, old: new,
  ) -> "Carry":
    """Returns what one more iteration leaves, rows that ended in it refilled.

    Args:
      state: after the iteration.
      info: its counts.
      refilled: from the policy's states with rows refilled, and before, to the new.
    """
    add = lambda total, new: total + new
    carry = self.replace(
      state=state, statistics=jax.tree.map(add, self.statistics, info)
    )
    if self.queue is None:
      return carry
    # A row at a time, so that no more is copied than what is new.
    carry = jax.lax.while_loop(lambda carry: _over(carry).any(), _refilled, carry)
    known = refilled(carry.state.policy_state, state.policy_state)
    return carry.replace(state=carry.state.replace(policy_state=known))

  def decoded(self, max_length: int) -> Decoded:
    """Returns the outputs and their statistics, of all that was queued."""
    if self.queue is not None:
      return self.queue.done
    state = self.state
    outputs = state.outputs(max_length)
    return Decoded(
      outputs, state.scores, self.statistics, state.observed, state.policy_state
    )


def queued(
  starts: DecodeState, shapes: Sequence[tuple[int, ...]], rows: int, max_length: int
) -> tuple[DecodeState, Queue]:
  """Returns a loop's start on the first of many rows, with all of them queued.

  Args:
    starts: of all R rows; in their caches there need be no room for an output.
    shapes: of the arrays of a state of B rows, with room.
    rows: how many decode at once.
    max_length: room for the output, in tokens.
  """
  arrays, tree = jax.tree.flatten(starts)
  grown = [_grown(x[:rows], shape) for x, shape in zip(arrays, shapes, strict=True)]
  state, total = jax.tree.unflatten(tree, grown), starts.lengths.shape[0]
  tokens = jnp.zeros((total, max_length), jnp.int32)
  done = Decoded(tokens, jnp.zeros(total), no_info(total))
  return state, Queue(starts, jnp.arange(rows), jnp.int32(rows), done)


def _over(carry: Carry) -> Bool[Array, "B"]:
  """Returns which rows have ended with an output that was not put away yet."""
  return carry.state.ended & (carry.queue.holds < carry.queue.size)


def _refilled(carry: Carry) -> Carry:
  """Puts one row's output away, and gives the row the next input, if any is left."""
  state, queue = carry.state, carry.queue
  row = jnp.argmax(_over(carry))
  place = queue.holds[row]
  max_length = queue.done.tokens.shape[1]
  outputs = state.outputs(max_length)
  ended = Decoded(outputs, state.scores, carry.statistics, state.observed)
  done = jax.tree.map(lambda all, x: all.at[place].set(x[row]), queue.done, ended)
  is_left = queue.next < queue.size
  state = _put(state, row, queue.starts, jnp.minimum(queue.next, queue.size - 1))
  state = state.replace(ended=state.ended.at[row].set(~is_left))
  return Carry(
    state,
    jax.tree.map(lambda total: total.at[row].set(0), carry.statistics),
    queue.replace(
      done=done,
      holds=queue.holds.at[row].set(jnp.where(is_left, queue.next, queue.size)),
      next=queue.next + is_left,
    ),
  )


def _put(state: Any, row, starts: Any, place) -> Any:
  """Returns the state with a row of `starts`; beyond it a cache stays stale."""

  def put(x, start):
    new = jax.lax.dynamic_index_in_dim(start, place, 0)
    return jax.lax.dynamic_update_slice(x, new, (row, *[0] * (x.ndim - 1)))

  return jax.tree.map(put, state, starts)


def _grown(x, shape):
  if x.shape == shape:
    return x
  return jnp.pad(x, [(0, size - had) for size, had in zip(shape, x.shape, strict=True)])
