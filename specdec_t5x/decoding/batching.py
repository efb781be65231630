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
from jax.sharding import PartitionSpec as P
from jaxtyping import Array, Bool, Int, Key

from specdec_t5x.core.knobs import KnobError, Name
from specdec_t5x.decoding.contracts import Policy
from specdec_t5x.decoding.state import Decoded, DecodeState
from specdec_t5x.network.inputs import input_lengths
from specdec_t5x.network.net import run_if

_AXIS = "data"

# (inputs, keys of their outputs) -> first states.
EncodeFn = Callable[[Int[Array, "I E"], Key[Array, "R"]], DecodeState]


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
    encode: makes `starts`.
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

  def waiting(self, state: DecodeState) -> Bool[Array, "B"]:
    """Returns which rows have an output to store, or an input to take."""
    has_output = self.holds < self.keys.shape[0]
    return state.ended & (has_output | (self.next < self.count))

  def decoded(self, policy_state: Any) -> Decoded:
    """Returns all outputs in the request's order, with the policy's last state."""

    def pad_rows(x):
      surplus = self.keys.shape[0] - len(x)
      return jnp.pad(x, [(0, surplus)] + [(0, 0)] * (x.ndim - 1))

    return self.done.replace(policy_state=jax.tree.map(pad_rows, policy_state))


def queue_of(
  encode: EncodeFn, request: Request, state: DecodeState, max_length: int
) -> Queue:
  """Returns the queue before the first iteration.

  Args:
    encode: makes first states, of as many inputs as there are rows. The states are
      copied into rows, so their caches need no room for outputs.
    request: the inputs.
    state: the rows, which decode nothing yet.
    max_length: the most tokens of an output.
  """
  outputs, per_input = request.keys.shape[0], request.per_input
  rows = state.lengths.shape[0]
  # The longest inputs come first, so that long outputs begin early and inputs of
  # similar length are encoded together. Unwanted inputs come last.
  lengths = input_lengths(request.inputs)
  order = jnp.argsort(jnp.where(request.is_wanted, -lengths, 1))
  places = jnp.arange(outputs).reshape(-1, per_input)[order].ravel()
  return Queue(
    inputs=request.inputs[order],
    keys=request.keys[places],
    places=jnp.append(places, outputs),
    count=request.is_wanted.sum() * per_input,
    next=jnp.int32(0),
    read=jnp.int32(0),
    starts=blank(encode, request, -(-rows // per_input) * per_input),
    holds=jnp.full(rows, outputs),
    done=jax.tree.map(
      lambda x: jnp.zeros((outputs, *x.shape[1:]), x.dtype), state.decoded(max_length)
    ),
    encode=encode,
  )


def blank(encode: EncodeFn, request: Request, rows: int) -> DecodeState:
  """Returns zeros with the shapes of first states: rows that decode nothing yet."""
  inputs = -(-rows // request.per_input)

  def encoded():
    first = encode(request.inputs[:inputs], request.keys[: inputs * request.per_input])
    leaves, structure = jax.tree.flatten(first.replace(policy_state=None))
    # A state can't be made of shapes alone: the call of this function makes the state.
    return jax.tree_util.Partial(structure.unflatten, leaves)

  shapes = jax.eval_shape(encoded)
  state = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype)[:rows], shapes)()
  # Rows that decode nothing still need a valid length.
  return state.replace(ended=~state.ended, lengths=state.lengths + 1)


def refill(
  state: DecodeState, queue: Queue, policy: Policy
) -> tuple[DecodeState, Queue]:
  """Gives the next inputs of the queue, if there are any, to rows that have ended."""
  policy_state, holds = state.policy_state, queue.holds
  # One row at a time, so that no more is copied than the new rows.
  state, queue = jax.lax.while_loop(
    lambda carry: carry[1].waiting(carry[0]).any(),
    lambda carry: _refill_row(carry[0], carry[1]),
    (state.replace(policy_state=None), queue),
  )
  policy_state = policy.start(holds.size, policy_state, queue.holds != holds)
  return state.replace(policy_state=policy_state), queue


def _refill_row(state: DecodeState, queue: Queue) -> tuple[DecodeState, Queue]:
  """Stores the output of one row, and gives the row the next input, if there is one."""
  has_next = queue.next < queue.count
  queue = run_if(has_next & (queue.next == queue.read), _encode_next, queue)
  row = jnp.argmax(queue.waiting(state))
  # A row that decodes nothing stores beyond the last place: nothing.
  place = queue.places[queue.holds[row]]
  done = jax.tree.map(
    lambda outputs, x: outputs.at[place].set(x[row], mode="drop"),
    queue.done,
    state.decoded(queue.done.tokens.shape[1]),
  )
  start = queue.next % queue.starts.lengths.shape[0]
  state = _put_row(state, row, queue.starts, start)
  state = state.replace(ended=state.ended.at[row].set(~has_next))
  holds = queue.holds.at[row].set(jnp.where(has_next, queue.next, queue.keys.shape[0]))
  return state, queue.replace(done=done, holds=holds, next=queue.next + has_next)


def _put_row(state: Any, row: int | Array, starts: Any, start: int | Array) -> Any:
  """Returns the state with a row of `starts`; the rest of a cache's row stays stale."""

  def put(x, first):
    new = jax.lax.dynamic_index_in_dim(first, start, 0)
    return jax.lax.dynamic_update_slice(x, new, (row, *[0] * (x.ndim - 1)))

  return jax.tree.map(put, state, starts)


def _encode_next(queue: Queue) -> Queue:
  """Encodes the next inputs of the queue."""
  per_input = queue.keys.shape[0] // queue.inputs.shape[0]
  count = queue.starts.lengths.shape[0]

  # Beyond the last input the last input is encoded again, for no row.
  def entries(x, first, count):
    return jnp.take(x, first + jnp.arange(count), 0, mode="clip")

  inputs = entries(queue.inputs, queue.read // per_input, count // per_input)
  keys = entries(queue.keys, queue.read, count)
  starts = queue.encode(inputs, keys).replace(policy_state=None)
  return queue.replace(starts=starts, read=queue.read + count)


def by_shard(
  decode_part: Callable[[Request, int], Decoded], request: Request, slots: int
) -> Decoded:
  """Decodes the inputs of shards independently, `slots` rows at once over all devices.

  `decode_part` decodes a shard's inputs with a number of rows. Shards wait for one
  another only at the end. Within a shard the rules that divide parameters over the axis
  'model' stay in force.

  Raises:
    ValueError: if the rows can't be divided equally among the devices, or if the
      devices that rows lie on are unknown.
  """
  mesh = jax.sharding.get_abstract_mesh()
  # The partitioner of upstream T5X has axis rules, but enters its mesh in a way that
  # JAX no longer shows.
  if mesh.empty and jax.device_count() > 1 and get_axis_rules():
    raise KnobError(
      "{slots} on several devices ({count}) needs a partitioner that enters the mesh "
      "with jax.set_mesh, such as t5x_runtime's: otherwise a row would take the inputs "
      "of another device. {fix}.",
      count=jax.device_count(),
      fix=Name("Leave slots at 0", "Set READ_AHEAD to 0"),
    )
  shards = 1 if mesh.empty else mesh.shape.get(_AXIS, 1)
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
  # Within a shard the rows are not divided over any axis.
  rules = [(name, None if axis == _AXIS else axis) for name, axis in get_axis_rules()]

  def decode_shard(request):
    with axis_rules(rules):
      return decode_part(request, slots // shards)

  return jax.shard_map(
    decode_shard,
    mesh=mesh,
    in_specs=P(_AXIS),
    out_specs=P(_AXIS),
    axis_names={_AXIS},
    check_vma=False,
  )(request)
