"""Continuous batching: a row takes the next input when an output has ended.

Without a queue a batch lasts as long as its slowest row. Outputs do not depend on the
number of rows. Inputs are encoded when a row needs one, as many as there are rows, so a
long queue takes no memory. Shards of the mesh's 'data' axis decode independently.

Shapes: B rows, I inputs, R outputs of all inputs, T output length, E input length.
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
from specdec_t5x.decoding.widths import run_if
from specdec_t5x.network.inputs import input_lengths

_AXIS = "data"

# (inputs, keys of their rows, whether caches have room for outputs) -> (how to decode,
# first states).
PrepareFn = Callable[
  [Int[Array, "I E"], Key[Array, "R"], bool], tuple[Any, DecodeState]
]


@flax.struct.dataclass
class Request:
  """The inputs of a decode.

  Attributes:
    inputs: all inputs.
    keys: random keys of the outputs; the keys of an input are neighbours.
    is_wanted: marks the inputs to decode; unwanted inputs only fill a batch, and their
      outputs are empty.
    policy_state: the policy's state after the batch before.
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
    """Returns the request for all inputs, or for the wanted inputs."""
    if is_wanted is None:
      is_wanted = jnp.ones(len(inputs), bool)
    return cls(inputs, keys, is_wanted, policy_state)


@flax.struct.dataclass
class Queue:
  """The inputs that wait for a row, and the finished outputs.

  Attributes:
    inputs: in the order of decoding.
    keys: keys of the outputs, in this order.
    places: place of each output in the request; the last entry, for no output, is
      beyond the request's places.
    policy_state: the policy's state after the batch before.
    count: number of outputs to decode.
    next: number of the first output that no row has taken.
    read: number of outputs with inputs that were encoded so far.
    starts: first states of the inputs encoded last; their caches have no room for
      outputs.
    holds: numbers of the outputs that the rows decode; R for rows without an output.
    done: the finished outputs, in the request's order; zeros for unfinished outputs.
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
    """The number of outputs (R)."""
    return self.keys.shape[0]

  def waiting(self, carry: Carry) -> Bool[Array, "B"]:
    """Returns which rows have an output to store, or an input to take."""
    return carry.state.ended & ((self.holds < self.size) | (self.next < self.count))

  def decoded(self, policy_state: Any) -> Decoded:
    """Returns all outputs in the request's order, with the policy's last state."""

    def pad_rows(x):
      return jnp.pad(x, [(0, self.size - len(x))] + [(0, 0)] * (x.ndim - 1))

    return self.done.replace(policy_state=jax.tree.map(pad_rows, policy_state))


def refill(
  carry: Carry, refill_policy: Callable[[Any, Any], Any] | None = None
) -> Carry:
  """Gives the next inputs of the queue, if there are any, to rows that have ended.

  Args:
    carry: the carry after an iteration.
    refill_policy: returns the policy's new state, given the state with refilled rows
      and the state before.
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
  """Decodes all inputs, `slots` rows at once; devices decode independently.

  Args:
    prepare: returns how to decode, and first states.
    run: (how to decode, first states, queue=None) -> outputs.
    request: the inputs.
    slots: rows at once, over all devices; 0 is all rows.
    max_length: the most tokens of an output.

  Raises:
    ValueError: if the rows can't be divided equally among the devices, or if the
      devices that rows lie on are unknown.
  """
  rows = request.keys.shape[0]
  if not slots or slots >= rows:
    how, state = prepare(request.inputs, request.keys)
    is_wanted = jnp.repeat(request.is_wanted, rows // len(request.inputs))
    return run(how, state.replace(ended=state.ended | ~is_wanted))

  def decode_part(request, slots):
    how, state, queue = _queued(prepare, request, slots, max_length)
    return run(how, state, queue=queue)

  return _by_shard(decode_part, request, slots)


def _queued(
  prepare: PrepareFn, request: Request, slots: int, max_length: int
) -> tuple[Any, DecodeState, Queue]:
  """Returns how to decode, the state of rows that decode nothing, and the queue."""
  rows = request.keys.shape[0]
  per_input = rows // request.inputs.shape[0]
  # The longest inputs come first, so that long outputs begin early and inputs of
  # similar length are encoded together. Unwanted inputs come last.
  lengths = input_lengths(request.inputs)
  order = jnp.argsort(jnp.where(request.is_wanted, -lengths, 1))
  places = jnp.arange(rows).reshape(-1, per_input)[order].ravel()
  inputs = request.inputs[order]
  keys = request.keys[places]
  chunk = -(-slots // per_input)
  first_inputs = inputs[:chunk]
  first_keys = keys[: chunk * per_input]
  how, _ = prepare(first_inputs, first_keys, False)
  state = _blank(prepare, first_inputs, first_keys, has_room=True)
  state = jax.tree.map(lambda x: x[:slots], state)
  observed = jax.tree.map(
    lambda x: jnp.zeros((rows, *x.shape[1:]), x.dtype), state.observed
  )
  tokens = jnp.zeros((rows, max_length), jnp.int32)
  queue = Queue(
    inputs=inputs,
    keys=keys,
    places=jnp.append(places, rows),
    policy_state=request.policy_state,
    count=request.is_wanted.sum() * per_input,
    next=jnp.int32(0),
    read=jnp.int32(0),
    starts=_blank(prepare, first_inputs, first_keys, has_room=False),
    holds=jnp.full(slots, rows),
    done=Decoded(tokens, jnp.zeros(rows), no_info(rows), observed),
    prepare=prepare,
  )
  # Rows that decode nothing still need a valid length.
  state = state.replace(ended=queue.holds == rows, lengths=state.lengths + 1)
  return how, state, queue


def _blank(
  prepare: PrepareFn, inputs: Array, keys: Array, has_room: bool
) -> DecodeState:
  """Returns zeros of the shapes of first states."""
  structures = []

  def leaves_of(inputs, keys):
    # A list of leaves: a state can't be made of shapes alone.
    leaves, structure = jax.tree.flatten(prepare(inputs, keys, has_room)[1])
    structures.append(structure)
    return leaves

  shapes = jax.eval_shape(leaves_of, inputs, keys)
  zeros = [jnp.zeros(x.shape, x.dtype) for x in shapes]
  return jax.tree.unflatten(structures[0], zeros)


def _refill_row(carry: Carry) -> Carry:
  """Stores the output of one row, and gives the row the next input, if there is one."""
  lacks_input = carry.queue.next == carry.queue.read
  lacks_input &= carry.queue.next < carry.queue.count
  queue = run_if(lacks_input, _encode_next, carry.queue)
  state = carry.state
  row = jnp.argmax(queue.waiting(carry))
  ended = Decoded(
    state.outputs(queue.done.tokens.shape[1]),
    state.scores,
    carry.statistics,
    state.observed,
  )
  # A row that decodes nothing stores beyond the last place: nothing.
  place = queue.places[queue.holds[row]]
  done = jax.tree.map(
    lambda outputs, x: outputs.at[place].set(x[row], mode="drop"), queue.done, ended
  )
  has_next = queue.next < queue.count
  start = queue.next % queue.starts.lengths.shape[0]
  state = _put_row(state, row, queue.starts, start)
  state = state.replace(ended=state.ended.at[row].set(~has_next))
  statistics = jax.tree.map(lambda total: total.at[row].set(0), carry.statistics)
  holds = queue.holds.at[row].set(jnp.where(has_next, queue.next, queue.size))
  queue = queue.replace(done=done, holds=holds, next=queue.next + has_next)
  return carry.replace(state=state, statistics=statistics, queue=queue)


def _encode_next(queue: Queue) -> Queue:
  """Encodes the next inputs of the queue."""
  per_input = queue.keys.shape[0] // queue.inputs.shape[0]
  count = queue.starts.lengths.shape[0]

  # Beyond the last input the last input is encoded again, for no row.
  def entries(x, first, count):
    return jnp.take(x, first + jnp.arange(count), 0, mode="clip")

  inputs = entries(queue.inputs, queue.read // per_input, count // per_input)
  keys = entries(queue.keys, queue.read, count)
  _, starts = queue.prepare(inputs, keys, False)
  return queue.replace(starts=starts, read=queue.read + count)


def _put_row(state: Any, row: int | Array, starts: Any, start: int | Array) -> Any:
  """Returns the state with a row of `starts`; the rest of a cache's row stays stale."""

  def put(x, first):
    new = jax.lax.dynamic_index_in_dim(first, start, 0)
    return jax.lax.dynamic_update_slice(x, new, (row, *[0] * (x.ndim - 1)))

  return jax.tree.map(put, state, starts)


def _by_shard(
  decode_part: Callable[[Request, int], Decoded], request: Request, slots: int
) -> Decoded:
  """Decodes the inputs of shards independently; see `decode`.

  Shards wait for one another only at the end. Within a shard the rules that divide
  parameters over the axis 'model' stay in force.
  """
  mesh = jax.sharding.get_abstract_mesh()
  if mesh.empty:
    _check_undivided()
    return decode_part(request, slots)
  shards = mesh.shape.get(_AXIS, 1)
  if shards == 1:
    return decode_part(request, slots)
  if slots % shards:
    raise ValueError(
      f"SLOTS must be divisible by the mesh's {_AXIS!r} axis of {shards} devices, got "
      f"{slots}: every device decodes an equal number of rows. Change SLOTS or "
      "PjitPartitioner.num_partitions."
    )
  return _mapped(decode_part, mesh, slots // shards)(request)


def _mapped(decode_part, mesh: AbstractMesh, slots: int):
  # Within a shard the rows are not divided over any axis.
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


def _check_undivided() -> None:
  """Raises a ValueError if rows may be divided over a mesh that JAX does not show.

  The partitioner of upstream T5X has axis rules, but enters its mesh in a way that JAX
  no longer shows.
  """
  if jax.device_count() > 1 and get_axis_rules():
    raise ValueError(
      f"SLOTS on several devices ({jax.device_count()}) needs a partitioner that "
      "enters the mesh with jax.set_mesh, such as t5x_runtime's: otherwise a row would "
      "take the inputs of another device. Leave SLOTS at 0."
    )
