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

from specdec_t5x.core.knobs import KnobError
from specdec_t5x.decoding.contracts import Policy
from specdec_t5x.decoding.state import Carry, Decoded, DecodeState, no_info
from specdec_t5x.network.inputs import input_lengths

_AXIS = "data"

# (inputs, keys of their rows, has_room=True) -> first states. Caches that are copied
# into a row need no room for outputs.
EncodeFn = Callable[..., DecodeState]


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

  @property
  def per_input(self) -> int:
    """The number of outputs of an input."""
    return self.keys.shape[0] // self.inputs.shape[0]


@flax.struct.dataclass
class Queue:
  """The inputs that wait for a row, and the finished outputs.

  Attributes:
    inputs: in the order of decoding.
    keys: keys of the outputs, in this order.
    places: place of each output in the request; the last entry, for no output, is
      beyond the request's places.
    count: number of outputs to decode.
    next: number of the first output that no row has taken.
    read: number of outputs with inputs that were encoded so far.
    starts: first states of the inputs encoded last; their caches have no room for
      outputs.
    holds: numbers of the outputs that the rows decode; R for rows without an output.
    done: the finished outputs, in the request's order; zeros for unfinished outputs.
    encode: makes first states.
  """

  inputs: Int[Array, "I E"]
  keys: Key[Array, "R"]
  places: Int[Array, "_"]
  count: Int[Array, ""]
  next: Int[Array, ""]
  read: Int[Array, ""]
  starts: DecodeState
  holds: Int[Array, "B"]
  done: Decoded
  encode: EncodeFn = flax.struct.field(pytree_node=False)

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


def queued(
  encode: EncodeFn, request: Request, slots: int, max_length: int
) -> tuple[DecodeState, Queue]:
  """Returns the state of `slots` rows that decode nothing yet, and the queue.

  Args:
    encode: makes first states, of as many inputs as there are rows.
    request: the inputs.
    slots: the number of rows.
    max_length: the most tokens of an output.
  """
  rows, per_input = request.keys.shape[0], request.per_input
  # The longest inputs come first, so that long outputs begin early and inputs of
  # similar length are encoded together. Unwanted inputs come last.
  lengths = input_lengths(request.inputs)
  order = jnp.argsort(jnp.where(request.is_wanted, -lengths, 1))
  places = jnp.arange(rows).reshape(-1, per_input)[order].ravel()
  inputs, keys = request.inputs[order], request.keys[places]
  chunk = -(-slots // per_input)
  first_inputs, first_keys = inputs[:chunk], keys[: chunk * per_input]
  blank = _blank(encode, first_inputs, first_keys, has_room=True)
  state = jax.tree.map(lambda x: x[:slots], blank)
  observed = jax.tree.map(
    lambda x: jnp.zeros((rows, *x.shape[1:]), x.dtype), state.observed
  )
  tokens = jnp.zeros((rows, max_length), jnp.int32)
  queue = Queue(
    inputs=inputs,
    keys=keys,
    places=jnp.append(places, rows),
    count=request.is_wanted.sum() * per_input,
    next=jnp.int32(0),
    read=jnp.int32(0),
    starts=_blank(encode, first_inputs, first_keys, has_room=False),
    holds=jnp.full(slots, rows),
    done=Decoded(tokens, jnp.zeros(rows), no_info(rows), observed),
    encode=encode,
  )
  # Rows that decode nothing still need a valid length.
  return state.replace(ended=queue.holds == rows, lengths=state.lengths + 1), queue


def _blank(encode: EncodeFn, inputs: Array, keys: Array, has_room: bool) -> DecodeState:
  """Returns zeros of the shapes of first states."""

  def encoded():
    leaves, structure = jax.tree.flatten(encode(inputs, keys, has_room))
    # A state can't be made of shapes alone: the call of this function makes the state.
    return jax.tree_util.Partial(structure.unflatten, leaves)

  shapes = jax.eval_shape(encoded)
  blank = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), shapes)()
  return blank.replace(policy_state=None)


def refill(carry: Carry, policy: Policy) -> Carry:
  """Gives the next inputs of the queue, if there are any, to rows that have ended."""
  if carry.queue is None:
    return carry

  def waits(carry):
    return carry.queue.waiting(carry).any()

  policy_state, holds = carry.state.policy_state, carry.queue.holds
  carry = carry.replace(state=carry.state.replace(policy_state=None))
  # One row at a time, so that no more is copied than the new rows.
  carry = jax.lax.while_loop(waits, _refill_row, carry)
  policy_state = policy.start(holds.size, policy_state, carry.queue.holds != holds)
  return carry.replace(state=carry.state.replace(policy_state=policy_state))


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
  starts = queue.encode(inputs, keys, False).replace(policy_state=None)
  return queue.replace(starts=starts, read=queue.read + count)


def _put_row(state: Any, row: int | Array, starts: Any, start: int | Array) -> Any:
  """Returns the state with a row of `starts`; the rest of a cache's row stays stale."""

  def put(x, first):
    new = jax.lax.dynamic_index_in_dim(first, start, 0)
    return jax.lax.dynamic_update_slice(x, new, (row, *[0] * (x.ndim - 1)))

  return jax.tree.map(put, state, starts)


def run_if(condition: Bool[Array, ""], run: Callable[[Any], Any], carry: Any) -> Any:
  """Returns `run(carry)` if the condition holds, otherwise the carry.

  A loop of at most one turn, not `lax.cond`: XLA updates the carry of a loop in place,
  but copies it, with whole caches, into and out of a branch.
  """

  def turn(state):
    return jnp.array(False), run(state[1])

  return jax.lax.while_loop(lambda state: state[0], turn, (condition, carry))[1]


def by_shard(
  decode_part: Callable[[Request, int], Decoded], request: Request, slots: int
) -> Decoded:
  """Decodes the inputs of shards independently.

  Shards wait for one another only at the end. Within a shard the rules that divide
  parameters over the axis 'model' stay in force.

  Args:
    decode_part: decodes a shard's inputs with a number of rows.
    request: the inputs.
    slots: rows at once, over all devices.

  Raises:
    ValueError: if the rows can't be divided equally among the devices, or if the
      devices that rows lie on are unknown.
  """
  mesh = jax.sharding.get_abstract_mesh()
  if mesh.empty:
    _check_undivided()
    return decode_part(request, slots)
  shards = mesh.shape.get(_AXIS, 1)
  if shards == 1:
    return decode_part(request, slots)
  if slots % shards:
    raise KnobError(
      "{slots} must be divisible by the mesh's {axis!r} axis of {shards} devices, got "
      "{count}: every device decodes an equal number of rows. Change {slots} or "
      "PjitPartitioner.num_partitions.",
      axis=_AXIS,
      shards=shards,
      count=slots,
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
    raise KnobError(
      "{slots} on several devices ({count}) needs a partitioner that enters the mesh "
      "with jax.set_mesh, such as t5x_runtime's: otherwise a row would take the inputs "
      "of another device. Leave {slots} at 0.",
      count=jax.device_count(),
    )
