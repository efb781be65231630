"""A parallel drafter: one decoder layer drafts many positions in one pass.

The layer reads each known position t as the target's feature h_t beside the next token
x_{t+1}. After the last known position follow d - 1 learned vectors, the masks. The
layer attends to these positions and, with the target's keys and values, to the input.
The output at the last known position drafts the next token. The output at the i-th mask
drafts the token i positions later. The distributions do not depend on drafted tokens.

Source: DART, arXiv 2601.19278. The paper uses one vector for all masks, features of
three depths, and a separate vocabulary. Here each mask has a vector, the features are
the last layer's, and the target's projection gives the logits.

Shapes: B batch, L known positions, N known positions and masks, A visible positions,
H heads, K head width, E input length, D width, d drafted positions.
"""

import functools
from collections.abc import Callable

import flax.linen as nn
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from specdec_t5x.network import cache as cache_lib
from specdec_t5x.network.attention import KeyValues, mask_bias
from specdec_t5x.network.cache import DecoderCache
from specdec_t5x.network.decoder import DecoderLayer
from specdec_t5x.network.heads import REPLICATED, FeatureDrafter, dense
from specdec_t5x.network.layers import LayerNorm, RelativePositionBias, parameter


class LayerDrafter(FeatureDrafter):
  """One decoder layer over the target's features and the tokens after them."""

  def setup(self):
    cfg = self.config
    layer = cfg.layer
    self.feature_norm = LayerNorm(layer)
    self.token_norm = LayerNorm(layer)
    self.fuse = dense(cfg, cfg.emb_dim)
    self.relpos_bias = RelativePositionBias(layer, bidirectional=False)
    self.layer = DecoderLayer(layer, cfg.cross_attention)
    self.out_norm = LayerNorm(layer)

  def joined(
    self, features: Float[Array, "B L D"], embedded: Float[Array, "B L D"]
  ) -> Float[Array, "B L D"]:
    """Returns the layer's input for features and the tokens after the features."""
    normed = [self.feature_norm(features), self.token_norm(embedded)]
    return self.fuse(jnp.concatenate(normed, axis=-1))

  def attended(
    self,
    x: Float[Array, "B N D"],
    positions: tuple[Int[Array, "#B N"], Int[Array, "#B A"]],
    visible: Bool[Array, "B N A"],
    remember: Callable[[KeyValues], KeyValues] | None,
    cross: KeyValues | None,
    cross_mask: Bool[Array, "B #N E"] | None,
  ) -> tuple[Float[Array, "B N D"], tuple[Float[Array, "B H A K"], ...]]:
    """Returns the layer's output before the norm, and the result of `remember`.

    Args:
      x: input of the layer, N positions.
      positions: positions of the N inputs, and of all A positions that can be visible.
      visible: which of the A positions each input sees.
      remember: map from the keys and values of the N inputs to those of all A
        positions; None if both are the same.
      cross: the target's keys and values of the input.
      cross_mask: which tokens of the input each position sees.
    """
    bias = self.relpos_bias(*positions)
    bias = bias + mask_bias(visible[:, None], self.config.dtype)
    cross_bias = None
    if self.config.cross_attention:
      cross_bias = mask_bias(cross_mask[:, None], self.config.dtype)
    return self.layer(x, remember, bias, cross, cross_bias)

  def attended_in_cache(
    self,
    x: Float[Array, "B N D"],
    positions: tuple[Int[Array, "#B N"], Int[Array, "#B A"]],
    visible: Bool[Array, "B N A"],
    cache: DecoderCache,
    target: DecoderCache,
  ) -> tuple[Float[Array, "B N D"], DecoderCache]:
    """Like `attended`, with the caches of the drafter and of the target.

    Returns the drafter's cache with the new keys and values at the cache's index.
    """
    cross = cross_mask = None
    if self.config.cross_attention:
      # The target's dtype may differ from the drafter's.
      last = target.cross_keys[-1], target.cross_values[-1]
      cross = tuple(part.astype(self.config.dtype) for part in last)
      cross_mask = target.encoder_mask[:, None]
    buffers = cache.keys[0], cache.values[0]
    write = functools.partial(cache_lib.write_both, buffers, cache.index)
    x, (keys, values) = self.attended(x, positions, visible, write, cross, cross_mask)
    return x, cache.replace(keys=(keys,), values=(values,))

  @nn.nowrap
  def empty_cache(self, rows: int, num_slots: int) -> DecoderCache:
    """Returns a cache of `num_slots` slots per row: known positions and a block."""
    cfg = self.config
    empty = jnp.zeros((rows, cfg.num_heads, num_slots, cfg.head_dim), cfg.dtype)
    return DecoderCache(jnp.zeros(rows, jnp.int32), (empty,), (empty,))

  def features(self, h: Float[Array, "1 D"]) -> Float[Array, "1 1 d D"]:
    """Returns drafted features, to create the parameters."""
    cfg = self.config
    embedded = h[None]
    visible = jnp.ones((1, 1, 1), bool)
    keys = jnp.zeros((1, cfg.num_heads, 1, cfg.head_dim))
    cross = ((keys, keys), visible) if cfg.cross_attention else (None, None)
    return self.everywhere(jnp.tile(embedded, self.taps), embedded, visible, *cross)


class ParallelDrafter(LayerDrafter):
  """Drafts d positions at once from the target's features and cache."""

  def setup(self):
    super().setup()
    normal = nn.initializers.normal(1.0)
    shape = (self.config.count - 1, self.config.emb_dim)
    self.masks = parameter(self, "masks", normal, shape, REPLICATED)

  def with_masks(
    self,
    features: Float[Array, "B L D"],
    embedded: Float[Array, "B L D"],
    repeats: int,
  ) -> Float[Array, "B N D"]:
    """Returns the layer's input: known positions, then all masks `repeats` times."""
    known_inputs = self.joined(features, embedded)
    masks = jnp.tile(self.masks.astype(known_inputs.dtype), (len(features), repeats, 1))
    return jnp.concatenate([known_inputs, masks], axis=1)

  def extend(
    self,
    cache: DecoderCache,
    features: Float[Array, "B L D"],
    embedded: Float[Array, "B L D"],
    new: Int[Array, "B"],
    target: DecoderCache,
  ) -> tuple[Float[Array, "B d D"], DecoderCache]:
    """Returns the drafted features after each row's last known position.

    Args:
      cache: cache of the positions that were known before.
      features: the target's features at the L next positions, of which the first `new`
        are known.
      embedded: embedding of the token after each of the L positions.
      new: number of new known positions of each row, at most L.
      target: cache of the target, for the keys and values of the input.

    Returns:
      The features, which are meaningless in rows without a new position, and the cache
      with the new positions.
    """
    first = cache.index[:, None]
    size = features.shape[1]
    num_known = first + new[:, None]
    # Index of each position of the block, relative to the first mask.
    order = jnp.arange(size + self.config.count - 1) - size
    slots = first + size + order
    positions = jnp.where(order < 0, slots, num_known + order)
    all_slots = jnp.tile(jnp.arange(cache.num_slots), (len(new), 1))
    rows = jnp.arange(len(new))[:, None]
    # A position of the target sees all positions before. A mask sees the known
    # positions and the masks before.
    is_open = (all_slots < num_known) | (all_slots >= first + size)
    before = all_slots[:, None] <= slots[..., None]
    x, cache = self.attended_in_cache(
      self.with_masks(features, embedded, 1),
      (positions, all_slots.at[rows, slots].set(positions)),
      before & ((order < 0)[:, None] | is_open[:, None]),
      cache,
      target,
    )
    outputs = self.out_norm(x)
    last = jnp.maximum(new - 1, 0)[:, None, None]
    last_output = jnp.take_along_axis(outputs, last, axis=1)
    drafted = jnp.concatenate([last_output, outputs[:, size:]], axis=1)
    return drafted, cache.at(num_known[:, 0])

  def everywhere(
    self,
    features: Float[Array, "B L D"],
    embedded: Float[Array, "B L D"],
    same_example: Bool[Array, "B L L"],
    cross: KeyValues | None,
    cross_mask: Bool[Array, "B L E"] | None,
  ) -> Float[Array, "B L d D"]:
    """Returns the drafted features after every position, for training.

    Each position has separate masks. The masks see the positions that the position
    sees, and the previous masks of the same position. One pass computes all L d
    positions.
    """
    size = features.shape[1]
    count = self.config.count
    # The known position of each input, and the input's index among the masks.
    at, order = jnp.divmod(jnp.arange(size * (count - 1)), count - 1)
    at = jnp.concatenate([jnp.arange(size), at])
    order = jnp.concatenate([jnp.full(size, -1), order])
    sees_known = same_example[:, at] & (jnp.arange(size) <= at[:, None])
    is_same_position = at[:, None] == at[None, size:]
    sees_masks = is_same_position & (order[:, None] >= order[None, size:])
    sees_masks = jnp.broadcast_to(sees_masks, (len(features), *sees_masks.shape))
    positions = (at + order + 1)[None]
    x, _ = self.attended(
      self.with_masks(features, embedded, size),
      (positions, positions),
      jnp.concatenate([sees_known, sees_masks], axis=-1),
      None,
      cross,
      None if cross_mask is None else cross_mask[:, at],
    )
    outputs = self.out_norm(x)
    mask_outputs = outputs[:, size:].reshape(len(features), size, count - 1, -1)
    return jnp.concatenate([outputs[:, :size, None], mask_outputs], axis=2)
