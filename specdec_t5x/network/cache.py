"""The decoder's cache: one index a row, writes that overwrite, rollback by index.

Shapes: B batch, N new entries, S slots, H heads, K head width, E encoder length.
"""

import flax.struct
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, UInt32


@flax.struct.dataclass
class DecoderCache:
  """Keys and values of one batch of decodes.

  Slots at and beyond a row's `index` are stale: nothing reads them before they are
  written again, so a rollback only lowers the index.

  Attributes:
    index: number of committed entries of each row; the next write goes there.
    keys: per layer, the self-attention keys.
    values: per layer, the self-attention values.
    cross_keys: per layer, the keys of the encoded input, computed once; none in a
      decoder-only network.
    cross_values: per layer, the values of the encoded input.
    encoder_mask: which positions of the encoded input are tokens.
    scratch: the memory of our kernel for a step (`draft_step`), which all rows share.
      It has a part for each row, so that a cache's rows can be repeated and cut off; a
      row that is put into another cache must have a part of no words.
  """

  index: Int[Array, "B"]
  keys: tuple[Float[Array, "B H S K"], ...]
  values: tuple[Float[Array, "B H S K"], ...]
  cross_keys: tuple[Float[Array, "B H E K"], ...] = ()
  cross_values: tuple[Float[Array, "B H E K"], ...] = ()
  encoder_mask: Bool[Array, "B E"] | None = None
  scratch: UInt32[Array, "B _"] | None = None

  @property
  def num_slots(self) -> int:
    """The number of tokens that a row can hold."""
    return self.keys[0].shape[2]

  def at(self, index: Int[Array, "B"]) -> "DecoderCache":
    """Returns the cache rolled back (or committed) to `index` entries a row."""
    return self.replace(index=index)

  def gathered(
    self, sources: Int[Array, "B M"], destination: Int[Array, "B"]
  ) -> "DecoderCache":
    """Returns the cache with entries of each row copied from anywhere in it.

    Args:
      sources: the slots to copy, all read before the first is written.
      destination: the M copies go to slots destination .. destination+M-1.
    """
    read_row = jax.vmap(lambda row, slots: row[:, slots])
    move = lambda buffer: write(buffer, read_row(buffer, sources), destination)
    return self.replace(
      keys=tuple(map(move, self.keys)), values=tuple(map(move, self.values))
    )

  def widened(self, length: int) -> "DecoderCache":
    """Returns the cache with room for inputs of `length`; what is added is masked."""
    surplus = length - self.encoder_mask.shape[1]
    pad = lambda x: jnp.pad(x, ((0, 0), (0, 0), (0, surplus), (0, 0)))
    return self.replace(
      cross_keys=tuple(map(pad, self.cross_keys)),
      cross_values=tuple(map(pad, self.cross_values)),
      encoder_mask=jnp.pad(self.encoder_mask, ((0, 0), (0, surplus))),
    )


def write(
  buffer: Float[Array, "B H S K"],
  new: Float[Array, "B H N K"],
  index: Int[Array, "B"],
) -> Float[Array, "B H S K"]:
  """Overwrites slots index .. index+N-1 of each row.

  The caller leaves room: a start beyond S - N would be clamped and hit older slots.
  """
  write_row = jax.vmap(
    lambda row, block, start: jax.lax.dynamic_update_slice_in_dim(row, block, start, 1)
  )
  # Behind a barrier, or XLA on CPU fuses the write of a single row into what reads it,
  # twice, and copies the whole buffer for each.
  return jax.lax.optimization_barrier(write_row(buffer, new, index))


def block_mask(
  index: Int[Array, "B"],
  num_slots: int,
  tree: Bool[Array, "B N M"],
) -> Bool[Array, "B N S"]:
  """Returns which slots each of N new entries sees.

  Of the last M entries, the new ones among them (slots index+N-M .. index+N-1), those
  that `tree` names: entry i sees entry j where tree[i, j]. And all slots before those.
  """
  slots = jnp.arange(num_slots)
  first = index[:, None] + tree.shape[1] - tree.shape[2]
  committed = slots < first
  # Scatter the tree's columns to the slots that they stand for.
  size = tree.shape[-1]
  column = slots[None, :] - first
  inside = (column >= 0) & (column < size)
  column = jnp.broadcast_to(
    jnp.clip(column, 0, size - 1)[:, None, :], (*tree.shape[:2], num_slots)
  )
  in_block = jnp.take_along_axis(tree, column, axis=2) & inside[:, None, :]
  return committed[:, None, :] | in_block
