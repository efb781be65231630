"""Continuous batching: a row takes the next input when an output has ended.

Outputs do not depend on the number of rows. Inputs are encoded when a row needs one, as
many as there are rows, so a long queue takes no memory.

Shapes: B rows, I inputs, R outputs of all inputs, T output length, E input length.
"""

import dataclasses
import functools

import flax.struct
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Int, Key

from specdec_t5x.decoding.contracts import Context
from specdec_t5x.decoding.state import Decoded, DecodeState
from specdec_t5x.network.inputs import input_lengths
from specdec_t5x.network.net import run_if


@flax.struct.dataclass
class Queue:
  """The inputs that wait for a row, and the finished outputs.

  Attributes:
    inputs: in the order of decoding.
    keys: keys of the outputs, in this order.
    places: place of each output in the order of the inputs; the last entry, for no
      output, is beyond.
    count: number of outputs to decode.
    next: number of the first output that no row has taken.
    starts: first states of the inputs encoded last; their caches have no room for
      outputs.
    holds: numbers of the outputs that the rows decode; R for rows without an output.
    done: the finished outputs by place; zeros for unfinished outputs.
  """

  inputs: Int[Array, "I E"]
  keys: Key[Array, "R"]
  places: Int[Array, "_"]
  count: Int[Array, ""]
  next: Int[Array, ""]
  starts: DecodeState
  holds: Int[Array, "B"]
  done: Decoded

  def waiting(self, state: DecodeState) -> Bool[Array, "B"]:
    """Returns which rows have an output to store, or an input to take."""
    has_output = self.holds < self.keys.shape[0]
    return state.ended & (has_output | (self.next < self.count))

  def decoded(self, state: DecodeState) -> Decoded:
    """Returns all outputs by place, with the policy's last state."""

    def pad_rows(x):
      surplus = self.keys.shape[0] - len(x)
      return jnp.pad(x, [(0, surplus)] + [(0, 0)] * (x.ndim - 1))

    return self.done.replace(policy_state=jax.tree.map(pad_rows, state.policy_state))


def queue_of(
  ctx: Context,
  inputs: Int[Array, "I E"],
  keys: Key[Array, "R"],
  is_wanted: Bool[Array, "I"],
  state: DecodeState,
) -> Queue:
  """Returns the queue before the first turn.

  `state` are the rows, which decode nothing yet. Outputs of inputs that `is_wanted`
  does not mark are empty.
  """
  ctx = dataclasses.replace(ctx, room=0)
  outputs, rows = keys.shape[0], state.lengths.shape[0]
  per_input = outputs // inputs.shape[0]
  # The longest inputs come first, so that long outputs begin early and inputs of
  # similar length are encoded together. Unwanted inputs come last.
  order = jnp.argsort(jnp.where(is_wanted, -input_lengths(inputs), 1))
  places = jnp.arange(outputs).reshape(-1, per_input)[order].ravel()
  return Queue(
    inputs=inputs[order],
    keys=keys[places],
    places=jnp.append(places, outputs),
    count=is_wanted.sum() * per_input,
    next=jnp.int32(0),
    starts=blank(ctx, inputs, keys, -(-rows // per_input) * per_input),
    holds=jnp.full(rows, outputs),
    done=jax.tree.map(
      lambda x: jnp.zeros((outputs, *x.shape[1:]), x.dtype),
      state.decoded(ctx.max_length),
    ),
  )


def blank(
  ctx: Context, inputs: Int[Array, "I E"], keys: Key[Array, "R"], rows: int
) -> DecodeState:
  """Returns zeros with the shapes of first states: rows that decode nothing yet."""
  per_input = keys.shape[0] // inputs.shape[0]
  count = -(-rows // per_input)

  def encoded():
    first = ctx.first_state(inputs[:count], keys[: count * per_input])
    leaves, structure = jax.tree.flatten(first.replace(policy_state=None))
    # A state can't be made of shapes alone: the call of this function makes the state.
    return jax.tree_util.Partial(structure.unflatten, leaves)

  shapes = jax.eval_shape(encoded)
  state = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype)[:rows], shapes)()
  # Rows that decode nothing still need a valid length.
  return state.replace(ended=~state.ended, lengths=state.lengths + 1)


def refill(ctx: Context, state: DecodeState, queue: Queue) -> tuple[DecodeState, Queue]:
  """Gives the next inputs of the queue, if there are any, to rows that have ended."""
  policy_state, holds = state.policy_state, queue.holds
  # One row at a time, so that no more is copied than the new rows.
  state, queue = jax.lax.while_loop(
    lambda carry: carry[1].waiting(carry[0]).any(),
    lambda carry: _refill_row(ctx, *carry),
    (state.replace(policy_state=None), queue),
  )
  policy_state = ctx.policy.start(holds.size, policy_state, queue.holds != holds)
  return state.replace(policy_state=policy_state), queue


def _refill_row(
  ctx: Context, state: DecodeState, queue: Queue
) -> tuple[DecodeState, Queue]:
  """Stores the output of one row, and gives the row the next input, if there is one."""
  has_next = queue.next < queue.count
  # The place among the inputs encoded last.
  start = queue.next % queue.starts.lengths.shape[0]
  encode_next = functools.partial(_encode_next, ctx)
  queue = run_if(has_next & (start == 0), encode_next, queue)
  row = jnp.argmax(queue.waiting(state))
  # A row that decodes nothing stores beyond the last place: nothing.
  place = queue.places[queue.holds[row]]
  done = jax.tree.map(
    lambda outputs, x: outputs.at[place].set(x[row], mode="drop"),
    queue.done,
    state.decoded(queue.done.tokens.shape[1]),
  )

  # The rest of a cache's row stays stale.
  def put(x, first):
    new = jax.lax.dynamic_index_in_dim(first, start, 0)
    return jax.lax.dynamic_update_slice(x, new, (row, *[0] * (x.ndim - 1)))

  state = jax.tree.map(put, state, queue.starts)
  state = state.replace(ended=state.ended.at[row].set(~has_next))
  holds = queue.holds.at[row].set(jnp.where(has_next, queue.next, queue.keys.shape[0]))
  return state, queue.replace(done=done, holds=holds, next=queue.next + has_next)


def _encode_next(ctx: Context, queue: Queue) -> Queue:
  """Encodes the next inputs of the queue."""
  per_input = queue.keys.shape[0] // queue.inputs.shape[0]
  count = queue.starts.lengths.shape[0]

  # Beyond the last input the last input is encoded again, for no row.
  def entries(x, first, count):
    return jnp.take(x, first + jnp.arange(count), 0, mode="clip")

  inputs = entries(queue.inputs, queue.next // per_input, count // per_input)
  keys = entries(queue.keys, queue.next, count)
  starts = dataclasses.replace(ctx, room=0).first_state(inputs, keys)
  return queue.replace(starts=starts.replace(policy_state=None))
