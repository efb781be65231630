"""The decoder's cache: one index per row, writes that overwrite, rollback by index.

Shapes: B batch, N new entries, S slots, H heads, K head width, E encoder length.
"""

import functools

import flax.struct
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, UInt32


@flax.struct.dataclass
class DecoderCache:
  """Keys and values of one batch of decodes.

  Slots at and beyond a row's `index` are stale. A stale slot is not read before the
  next write to the slot, so a rollback only lowers the index.
  """

  # Number of committed entries of each row, and the slot of the next write.
  index: Int[Array, "B"]
  keys: tuple[Float[Array, "B H S K"], ...]  # Self-attention keys, per layer.
  values: tuple[Float[Array, "B H S K"], ...]  # Self-attention values, per layer.
  # Keys of the encoded input, per layer, computed once; empty in a decoder-only
  # network.
  cross_keys: tuple[Float[Array, "B H E K"], ...] = ()
  # Values of the encoded input, per layer.
  cross_values: tuple[Float[Array, "B H E K"], ...] = ()
  # Positions of the encoded input that are tokens.
  encoder_mask: Bool[Array, "B E"] | None = None
  # Memory of our kernel between steps (`native.cuda.step`). The kernel uses the array
  # as a whole; the axis of rows serves code that repeats or selects rows. In a cache
  # with rows to be copied into another cache the shape is [B, 0], so the copy
  # leaves the other cache's memory alone.
  scratch: UInt32[Array, "B _"] | None = None

  @property
  def num_slots(self) -> int:
    """The number of slots of a row."""
    return self.keys[0].shape[2]

  def at(self, index: Int[Array, "B"]) -> "DecoderCache":
    """Returns the cache rolled back (or committed) to `index` entries per row."""
    return self.replace(index=index)

  def gathered(
    self, sources: Int[Array, "B M"], destination: Int[Array, "B"]
  ) -> "DecoderCache":
    """Returns the cache with M entries of each row copied; see `core.types.Cache`."""

    def move(buffer):
      copies = jax.vmap(lambda row, slots: row[:, slots])(buffer, sources)
      return write(buffer, copies, destination)

    keys, values = jax.tree.map(move, (self.keys, self.values))
    return self.replace(keys=keys, values=values)

  def widened(self, length: int) -> "DecoderCache":
    """Returns the cache padded to an encoder length of `length`; padding is masked."""
    surplus = length - self.encoder_mask.shape[1]
    mask = jnp.pad(self.encoder_mask, ((0, 0), (0, surplus)))

    def pad(x):
      return jnp.pad(x, ((0, 0), (0, 0), (0, surplus), (0, 0)))

    keys, values = jax.tree.map(pad, (self.cross_keys, self.cross_values))
    return self.replace(cross_keys=keys, cross_values=values, encoder_mask=mask)


def write(
  buffer: Float[Array, "B H S K"],
  new: Float[Array, "B H N K"],
  index: Int[Array, "B"],
) -> Float[Array, "B H S K"]:
  """Overwrites slots index .. index+N-1 of each row.

  The caller leaves room: a start beyond S - N is clamped and overwrites older slots.
  """
  write_row = functools.partial(jax.lax.dynamic_update_slice_in_dim, axis=1)
  # Without the barrier, XLA on CPU fuses the write of a single row into both readers of
  # the buffer and copies the whole buffer for each reader.
  return jax.lax.optimization_barrier(jax.vmap(write_row)(buffer, new, index))


def write_both(
  buffers: tuple[Float[Array, "B H S K"], Float[Array, "B H S K"]],
  index: Int[Array, "B"],
  new: tuple[Float[Array, "B H N K"], Float[Array, "B H N K"]],
) -> tuple[Float[Array, "B H S K"], ...]:
  """Returns a layer's keys and values, both overwritten from `index` on."""
  return tuple(write(buffer, x, index) for buffer, x in zip(buffers, new, strict=True))


def block_mask(
  index: Int[Array, "B"],
  num_slots: int,
  tree: Bool[Array, "B N M"],
) -> Bool[Array, "B N S"]:
  """Returns which slots each of N new entries sees.

  The tree's M columns are the last M entries, in slots index+N-M .. index+N-1, new
  entries included. New entry i sees column j if tree[i, j] is true. Each new entry also
  sees all slots before slot index+N-M.
  """
  rows, count, size = tree.shape
  slots = jnp.arange(num_slots)
  first = index[:, None] + count - size
  # The column of each slot.
  column = slots - first
  is_inside = (column >= 0) & (column < size)
  clipped = jnp.clip(column, 0, size - 1)[:, None]
  clipped = jnp.broadcast_to(clipped, (rows, count, num_slots))
  in_block = jnp.take_along_axis(tree, clipped, axis=2) & is_inside[:, None]
  return (slots < first)[:, None] | in_block
