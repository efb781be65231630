"""Continuous batching: more inputs than rows; a row that ends takes the next input.

A batch lasts as long as its slowest row. With a queue, a row that ends takes the next
input: outputs are the same, whatever the number of rows. Inputs are read when a row
wants one, as many at once as there are rows, so a long queue takes no memory. On
several devices each shard of the mesh's 'data' axis decodes by itself.

Shapes: B rows, I inputs, R their outputs, T output length, E input length.
"""

from collections.abc import Callable
from typing import Any

import flax.struct
import jax
import jax.numpy as jnp
from flax.linen.partitioning import axis_rules, get_axis_rules
from jax.sharding import AbstractMesh
from jax.sharding import PartitionSpec as P
from jaxtyping import Array, Bool, Int, Key

from specdec_t5x.decoding.state import Carry, Decoded, DecodeState, no_info
from specdec_t5x.network.inputs import input_lengths

_AXIS = "data"

# From inputs and keys of their rows to how to decode, and the first states; these with
# room for outputs or without.
PrepareFn = Callable[
  [Int[Array, "I E"], Key[Array, "R"], bool], tuple[Any, DecodeState]
]


@flax.struct.dataclass
class Request:
  """What is to be decoded.

  Attributes:
    inputs: all.
    keys: of their rows; those of one input stand next to each other.
    is_wanted: which inputs are decoded: others fill a batch.
    policy_state: what the policy knows already, a row each.
  """

  inputs: Int[Array, "I E"]
  keys: Key[Array, "R"]
  is_wanted: Bool[Array, "I"]
  policy_state: Any = None

  @classmethod
  def of(
    cls,
    inputs: Int[Array, "I E"],
    keys: Key[Array, "R"],
    is_wanted: Bool[Array, "I"] | None = None,
    policy_state: Any = None,
  ) -> "Request":
    """Returns the request; `is_wanted` is all inputs if it is None."""
    if is_wanted is None:
      is_wanted = jnp.ones(len(inputs), bool)
    return cls(inputs, keys, is_wanted, policy_state)


@flax.struct.dataclass
class Queue:
  """What is still to be decoded, and what was.

  Attributes:
    inputs: in the order that rows take them.
    keys: of their rows.
    places: of their rows in the request; behind the last one that it does not have.
    policy_state: what the policy knew before.
    count: how many rows are to be decoded.
    next: the first row that was not taken yet.
    read: how many have been read.
    starts: first states of the rows read last; their caches have no room for outputs.
    holds: which row each row of the loop decodes; R where it has none.
    done: what was decoded; zeros where it is not yet.
    prepare: makes first states.
  """

  inputs: Int[Array, "I E"]
  keys: Key[Array, "R"]
  places: Int[Array, "_"]
  policy_state: Any
  count: Int[Array, ""]
  next: Int[Array, ""]
  read: Int[Array, ""]
  starts: DecodeState
  holds: Int[Array, "B"]
  done: Decoded
  prepare: PrepareFn = flax.struct.field(pytree_node=False)

  @property
  def size(self) -> int:
    """R."""
    return self.keys.shape[0]

  def waiting(self, carry: Carry) -> Bool[Array, "B"]:
    """Returns which rows have an output to put away, or an input to take."""
    return carry.state.ended & ((self.holds < self.size) | (self.next < self.count))

  def decoded(self, policy_state: Any) -> Decoded:
    """Returns all outputs, as the request had them, and what the policy knows then."""
    to_all = lambda x: jnp.pad(x, [(0, self.size - len(x))] + [(0, 0)] * (x.ndim - 1))
    return self.done.replace(policy_state=jax.tree.map(to_all, policy_state))


def refill(
  carry: Carry, refill_policy: Callable[[Any, Any], Any] | None = None
) -> Carry:
  """Gives the next inputs of the queue to rows that have ended, if there are any.

  Args:
    carry: after an iteration.
    refill_policy: returns the policy's state, given its state with refilled rows and
      its state before.
  """
  if carry.queue is None:
    return carry

  def waits(carry):
    return carry.queue.waiting(carry).any()

  before = carry.state.policy_state
  # One row at a time, so that no more is copied than the new rows.
  carry = jax.lax.while_loop(waits, _refill_row, carry)
  if refill_policy is None:
    return carry
  policy_state = refill_policy(carry.state.policy_state, before)
  return carry.replace(state=carry.state.replace(policy_state=policy_state))


def decode(
  prepare: PrepareFn,
  run: Callable[..., Decoded],
  request: Request,
  slots: int,
  max_length: int,
) -> Decoded:
  """Decodes all inputs, `slots` rows at once; on several devices each by itself.

  Args:
    prepare: returns how to decode, and first states.
    run: (how to decode, first states, queue=None) -> outputs.
    request: the inputs.
    slots: rows at once, over all devices; 0 is all.
    max_length: the most tokens of an output.

  Raises:
    ValueError: if the rows can't be divided equally among the devices, or if the
      devices that rows lie on are unknown.
  """
  if not slots or slots >= request.keys.shape[0]:
    return run(*prepare(request.inputs, request.keys))

  def decode_part(request, slots):
    how, state, queue = _queued(prepare, request, slots, max_length)
    return run(how, state, queue)

  return _by_shard(decode_part, request, slots)


def _queued(
  prepare: PrepareFn, request: Request, slots: int, max_length: int
) -> tuple[Any, DecodeState, Queue]:
  """Returns how to decode, rows that have nothing to decode, and a queue of all."""
  rows = request.keys.shape[0]
  per_input = rows // request.inputs.shape[0]
  # The longest first, those that are not wanted last: what ends last begins early, and
  # inputs of alike length are read together.
  lengths = input_lengths(request.inputs)
  order = jnp.argsort(jnp.where(request.is_wanted, -lengths, 1))
  places = jnp.arange(rows).reshape(-1, per_input)[order].ravel()
  inputs, keys = request.inputs[order], request.keys[places]
  chunk = -(-slots // per_input)
  first = inputs[:chunk], keys[: chunk * per_input]
  how, _ = prepare(*first, False)
  state = jax.tree.map(lambda x: x[:slots], _blank(prepare, first, True))
  tokens = jnp.zeros((rows, max_length), jnp.int32)
  observed = jax.tree.map(
    lambda x: jnp.zeros((rows, *x.shape[1:]), x.dtype), state.observed
  )
  queue = Queue(
    inputs=inputs,
    keys=keys,
    places=jnp.append(places, rows),
    policy_state=request.policy_state,
    count=request.is_wanted.sum() * per_input,
    next=jnp.int32(0),
    read=jnp.int32(0),
    starts=_blank(prepare, first, False),
    holds=jnp.full(slots, rows),
    done=Decoded(tokens, jnp.zeros(rows), no_info(rows), observed),
    prepare=prepare,
  )
  # Such rows have a length all the same, which some are left with.
  return how, state.replace(ended=queue.holds == rows, lengths=state.lengths + 1), queue


def _blank(prepare: PrepareFn, first: tuple[Array, Array], has_room: bool):
  """Returns what has the shape of first states."""
  trees = []

  def arrays(*given):
    # As a list: of shapes alone a state can't be made.
    found, tree = jax.tree.flatten(prepare(*given, has_room)[1])
    trees.append(tree)
    return found

  found = [jnp.zeros(x.shape, x.dtype) for x in jax.eval_shape(arrays, *first)]
  return jax.tree.unflatten(trees[0], found)


def _refill_row(carry: Carry) -> Carry:
  """Puts one row's output away, and gives the row the next input, if any is left."""
  lacks = lambda queue: (queue.next == queue.read) & (queue.next < queue.count)
  # A loop of at most one turn: a branch would copy what it returns.
  queue = jax.lax.while_loop(lacks, _read, carry.queue)
  state, row = carry.state, jnp.argmax(queue.waiting(carry))
  ended = Decoded(
    state.outputs(queue.done.tokens.shape[1]),
    state.scores,
    carry.statistics,
    state.observed,
  )
  # The place of a row that held nothing is behind the last.
  done_at = queue.places[queue.holds[row]]
  put = lambda all, x: all.at[done_at].set(x[row], mode="drop")
  is_left = queue.next < queue.count
  place = queue.next % queue.starts.lengths.shape[0]
  state = _put(state, row, queue.starts, place)
  state = state.replace(ended=state.ended.at[row].set(~is_left))
  return carry.replace(
    state=state,
    statistics=jax.tree.map(lambda total: total.at[row].set(0), carry.statistics),
    queue=queue.replace(
      done=jax.tree.map(put, queue.done, ended),
      holds=queue.holds.at[row].set(jnp.where(is_left, queue.next, queue.size)),
      next=queue.next + is_left,
    ),
  )


def _read(queue: Queue) -> Queue:
  """Reads the next inputs."""
  inputs, keys = queue.inputs, queue.keys
  per_input, count = keys.shape[0] // inputs.shape[0], queue.starts.lengths.shape[0]
  # Behind the last input it is read again; nothing is made of that.
  some = lambda x, first, count: jnp.take(x, first + jnp.arange(count), 0, mode="clip")
  part = some(inputs, queue.read // per_input, count // per_input)
  _, starts = queue.prepare(part, some(keys, queue.read, count), False)
  return queue.replace(starts=starts, read=queue.read + count)


def _put(state: Any, row, starts: Any, place) -> Any:
  """Returns the state with a row of `starts`; beyond it a cache stays stale."""

  def put(x, start):
    new = jax.lax.dynamic_index_in_dim(start, place, 0)
    return jax.lax.dynamic_update_slice(x, new, (row, *[0] * (x.ndim - 1)))

  return jax.tree.map(put, state, starts)


def _by_shard(
  decode_part: Callable[[Request, int], Decoded], request: Request, slots: int
) -> Decoded:
  """Decodes so that no shard takes the inputs of another; see `decode`.

  Shards wait for one another at the end alone. What divides parameters over 'model'
  holds within a shard.
  """
  mesh = jax.sharding.get_abstract_mesh()
  if mesh.empty:
    _check_whole()
    return decode_part(request, slots)
  shards = mesh.shape.get(_AXIS, 1)
  if shards == 1:
    return decode_part(request, slots)
  if slots % shards:
    raise ValueError(
      f"SLOTS={slots} is no multiple of the mesh's {_AXIS!r} axis of {shards} devices: "
      "each decodes as many rows. Change it, or PjitPartitioner.num_partitions."
    )
  return _mapped(decode_part, mesh, slots // shards)(request)


def _mapped(decode_part, mesh: AbstractMesh, slots: int):
  # Within a shard rows lie on no axis any more.
  rules = [(name, None if axis == _AXIS else axis) for name, axis in get_axis_rules()]

  def decode_shard(request):
    with axis_rules(rules):
      return decode_part(request, slots)

  return jax.shard_map(
    decode_shard,
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
