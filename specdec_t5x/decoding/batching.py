"""Continuous batching: more inputs than rows; a row that ends takes the next one.

A batch lasts as long as its slowest row. With a queue, a row that ends takes the next
input: outputs are the same, whatever the number of rows. On several devices each shard
of the mesh's 'data' axis decodes by itself.

Shapes: B rows, R inputs' rows in all, T output length, S sequence buffer.
"""

import functools
from collections.abc import Callable, Sequence
from typing import Any

import flax.struct
import jax
import jax.numpy as jnp
from flax.linen.partitioning import axis_rules, get_axis_rules
from jax.sharding import AbstractMesh
from jax.sharding import PartitionSpec as P
from jaxtyping import Array, Bool, Int, Key

from specdec_t5x.decoding.state import Carry, Decoded, DecodeState, no_info

_AXIS = "data"

# From inputs, keys of their rows and how many of these decode at once to the outputs.
DecodeFn = Callable[[Int[Array, "I E"], Key[Array, "R"], int], Decoded]


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

  def refilled(self, carry: Carry, known: Callable[[Any, Any], Any]) -> Carry:
    """Returns the carry with an input in each row that has ended, if any is left.

    Args:
      carry: after an iteration.
      known: from the policy's states with rows refilled, and before, to the new.
    """
    before = carry.state.policy_state
    # A row at a time, so that no more is copied than what is new.
    carry = jax.lax.while_loop(lambda carry: _over(carry).any(), _refilled, carry)
    state = carry.state.replace(policy_state=known(carry.state.policy_state, before))
    return carry.replace(state=state)


def decode(
  prepare: Callable[..., tuple[Any, DecodeState]],
  run: Callable[[Any, DecodeState, Queue], Decoded],
  inputs: Int[Array, "I E"],
  keys: Key[Array, "R"],
  slots: int,
  max_length: int,
) -> Decoded:
  """Decodes all inputs, `slots` rows at once; on several devices each by itself.

  Args:
    prepare: from inputs, keys and perhaps a chunk to how to decode, and the start.
    run: from how to decode, where to start and a queue to what was decoded.
    inputs: all.
    keys: of all rows.
    slots: rows at once, over all devices.
    max_length: the most tokens of an output.

  Raises:
    ValueError: where devices can't have as many rows each, or which they are is not to
      be seen.
  """
  take_turns = functools.partial(_take_turns, prepare, run, max_length)
  return _by_shard(take_turns, inputs, keys, slots)


def _take_turns(prepare, run, max_length, inputs, keys, slots) -> Decoded:
  arrays = lambda *few: jax.tree.leaves(prepare(*few)[1])
  shapes = [x.shape for x in jax.eval_shape(arrays, *_first(inputs, keys, slots))]
  # The longest first: what ends last begins early, and inputs of alike length are read
  # together.
  order = jnp.argsort(-(inputs > 0).sum(axis=1))
  rows = jnp.arange(keys.shape[0]).reshape(inputs.shape[0], -1)[order].ravel()
  how, starts = prepare(inputs[order], keys[rows], slots)
  decoded = run(how, *_queued(starts, shapes, slots, max_length))
  return jax.tree.map(lambda x: x[jnp.argsort(rows)], decoded)


def _first(inputs, keys, slots):
  """Returns the inputs and keys of the rows that decode at once, an input a row."""
  inputs = jnp.repeat(inputs, keys.shape[0] // inputs.shape[0], axis=0)
  return inputs[:slots], keys[:slots]


def _queued(
  starts: DecodeState, shapes: Sequence[tuple[int, ...]], rows: int, max_length: int
) -> tuple[DecodeState, Queue]:
  """Returns a loop's start on the first of many rows, with all of them queued.

  Args:
    starts: of all R rows; in their caches there need be no room for an output.
    shapes: of the arrays of a state of B rows, with room.
    rows: how many decode at once.
    max_length: the most tokens of the output.
  """
  arrays, tree = jax.tree.flatten(starts)
  grown = [_grown(x[:rows], shape) for x, shape in zip(arrays, shapes, strict=True)]
  state, total = jax.tree.unflatten(tree, grown), starts.lengths.shape[0]
  tokens = jnp.zeros((total, max_length), jnp.int32)
  observed = jax.tree.map(jnp.zeros_like, starts.observed)
  done = Decoded(tokens, jnp.zeros(total), no_info(total), observed)
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


def _by_shard(
  decode: DecodeFn, inputs: Int[Array, "I E"], keys: Key[Array, "R"], slots: int
) -> Decoded:
  """Decodes where rows take turns, so that no shard takes the inputs of another.

  Shards wait for one another at the end alone. What divides parameters over 'model'
  holds within a shard.

  Args:
    decode: what each shard does with its part.
    inputs: all.
    keys: of all rows.
    slots: rows at once, over all shards.

  Raises:
    ValueError: where the shards can't have as many rows each, or which they are is not
      to be seen.
  """
  mesh = jax.sharding.get_abstract_mesh()
  if mesh.empty:
    _check_whole()
    return decode(inputs, keys, slots)
  shards = mesh.shape.get(_AXIS, 1)
  if shards == 1:
    return decode(inputs, keys, slots)
  if slots % shards:
    raise ValueError(
      f"SLOTS={slots} is no multiple of the mesh's {_AXIS!r} axis of {shards} devices: "
      "each decodes as many rows. Change it, or PjitPartitioner.num_partitions."
    )
  return _mapped(decode, mesh, slots // shards)(inputs, keys)


def _mapped(decode, mesh: AbstractMesh, slots: int):
  # Within a shard rows lie on no axis any more.
  rules = [(name, None if axis == _AXIS else axis) for name, axis in get_axis_rules()]

  def decode_part(inputs, keys):
    with axis_rules(rules):
      return decode(inputs, keys, slots)

  return jax.shard_map(
    decode_part,
    mesh=mesh,
    in_specs=P(_AXIS),
    out_specs=P(_AXIS),
    axis_names={_AXIS},
    check_vma=False,
  )


def _check_whole() -> None:
  """Raises a ValueError where rows may be divided over a mesh that is not to be seen.

  A partitioner has rules; upstream T5X's enters its mesh as JAX no longer shows it.
  """
  if jax.device_count() > 1 and get_axis_rules():
    raise ValueError(
      f"SLOTS on several devices, here {jax.device_count()}, needs a partitioner that "
      "enters its mesh by jax.set_mesh, as t5x_runtime's does: rows of one device "
      "would take inputs of another. Leave SLOTS at 0."
    )
