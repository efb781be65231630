"""A parallel drafter: one decoder layer drafts many positions in one pass.

Each known position t is read as the target's feature h_t beside the token x_{t+1} after
it; behind the last one stand d - 1 times the same learned vector, the masks. The layer
attends to these positions and, with the target's own keys and values, to the input. Its
output at the last known position drafts the next token, the i-th mask's the one i
tokens on: distributions that depend on no drafted token.

Source: DART, arXiv 2601.19278. There all masks are one vector, features of three depths
are read, here the last one's, and the layer has a vocabulary of its own, here the
target's projection makes logits of its outputs.

Shapes: B batch, L known positions, N with masks, D width, d drafted positions.
"""

import flax.linen as nn
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from specdec_t5x.network import cache as cache_lib
from specdec_t5x.network.attention import KeyValues, mask_bias
from specdec_t5x.network.cache import DecoderCache
from specdec_t5x.network.decoder import DecoderLayer
from specdec_t5x.network.heads import REPLICATED, FeatureDrafter, HeadsConfig
from specdec_t5x.network.layers import (
  Dense,
  LayerNorm,
  RelativePositionBias,
  parameter,
)


class LayerDrafter(FeatureDrafter):
  """One decoder layer over the target's features and the tokens after them."""

  config: HeadsConfig

  def setup(self):
    cfg, layer = self.config, self.config.layer
    kind = {"dtype": cfg.dtype, "products": cfg.products}
    self.feature_norm, self.token_norm = LayerNorm(layer), LayerNorm(layer)
    self.fuse = Dense(cfg.emb_dim, REPLICATED, **kind)
    self.relpos_bias = RelativePositionBias(layer, bidirectional=False)
    self.layer = DecoderLayer(layer, cfg.cross_attention)
    self.out_norm = LayerNorm(layer)

  def joined(
    self, features: Float[Array, "B L D"], embedded: Float[Array, "B L D"]
  ) -> Float[Array, "B L D"]:
    """Returns what the layer reads of features and the tokens after them."""
    known = [self.feature_norm(features), self.token_norm(embedded)]
    return self.fuse(jnp.concatenate(known, axis=-1))

  def attended(
    self,
    x: Float[Array, "B N D"],
    positions: tuple[Int[Array, "#B N"], Int[Array, "#B A"]],
    visible: Bool[Array, "B N A"],
    remember,
    cross: KeyValues | None,
    cross_mask: Bool[Array, "B #N E"] | None,
  ) -> tuple[
    Float[Array, "B N D"], tuple[Float[Array, "B H A K"], Float[Array, "B H A K"]]
  ]:
    """Returns the layer's output, not normalised, and what `remember` gave.

    Args:
      x: what it reads, N positions.
      positions: of these, and of all A that they may see.
      visible: which of the A each one sees.
      remember: from the N positions' keys and values to all A of them.
      cross: the target's keys and values of the input.
      cross_mask: which tokens of the input each position sees.
    """
    bias = self.relpos_bias(*positions)
    bias = bias + mask_bias(visible[:, None], self.config.dtype)
    cross_bias = None
    if self.config.cross_attention:
      cross_bias = mask_bias(cross_mask[:, None], self.config.dtype)
    return self.layer(x, remember, bias, cross, cross_bias)

  def of_target(self, cache: DecoderCache):
    """Returns the target's keys and values of the input, and which tokens it has."""
    if not self.config.cross_attention:
      return None, None
    last = cache.cross_keys[-1], cache.cross_values[-1]
    # Of the target's dtype, which may be another one.
    return tuple(x.astype(self.config.dtype) for x in last), cache.encoder_mask[:, None]

  @nn.nowrap
  def empty_cache(self, rows: int, num_slots: int) -> DecoderCache:
    """Returns a cache for so many known positions a row, and a block beyond them."""
    cfg = self.config
    empty = jnp.zeros((rows, cfg.num_heads, num_slots, cfg.head_dim), cfg.dtype)
    return DecoderCache(jnp.zeros(rows, jnp.int32), (empty,), (empty,))

  def __call__(self, *tokens, enable_dropout=False, **kwargs):
    """Reads nothing of T5X's arguments: parameters follow from the configuration."""
    del enable_dropout, kwargs
    self.create_token_parameters(tokens[0])
    cfg, rows = self.config, jnp.zeros((1, 1, self.config.emb_dim))
    seen, keys = jnp.ones((1, 1, 1), bool), (1, cfg.num_heads, 1, cfg.head_dim)
    cross = (jnp.zeros(keys),) * 2 if cfg.cross_attention else None
    features = jnp.zeros((1, 1, self.taps * cfg.emb_dim))
    return self.everywhere(features, rows, seen, cross, seen if cross else None)


class ParallelDrafter(LayerDrafter):
  """Drafts d positions at once from the target's features and cache."""

  def setup(self):
    super().setup()
    cfg = self.config
    normal, shape = nn.initializers.normal(1.0), (cfg.count - 1, cfg.emb_dim)
    self.masks = parameter(self, "masks", normal, shape, REPLICATED)

  def drafted(
    self, features: Float[Array, "B L D"], embedded: Float[Array, "B L D"], repeats, *of
  ) -> tuple[
    Float[Array, "B N D"], tuple[Float[Array, "B H A K"], Float[Array, "B H A K"]]
  ]:
    """Returns the features after N positions, known ones and then masks.

    Args:
      features: the target's at known positions.
      embedded: the tokens after these.
      repeats: how often all masks stand behind the known positions.
      *of: as for `attended`.

    Returns:
      The features, and what `remember` gave.
    """
    known = self.joined(features, embedded)
    masks = jnp.tile(self.masks.astype(known.dtype), (len(features), repeats, 1))
    x, key_values = self.attended(jnp.concatenate([known, masks], axis=1), *of)
    return self.out_norm(x), key_values

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
      cache: holds the positions that were known before.
      features: the target's at those after them, of which `new` are known by now.
      embedded: the tokens after these.
      new: at most L.
      target: the target's cache, for its keys and values of the input.

    Returns:
      Features, of no use in rows without a new position, and the cache with those.
    """
    first, size = cache.index[:, None], features.shape[1]
    known = first + new[:, None]
    # Of the positions in this block, from the first mask on.
    order = jnp.arange(size + self.config.count - 1) - size
    slots = first + size + order
    places = jnp.where(order < 0, slots, known + order)
    all_slots = jnp.broadcast_to(
      jnp.arange(cache.num_slots), (len(new), cache.num_slots)
    )
    rows = jnp.arange(len(new))[:, None]
    # Positions see those before them; masks what is known, and the masks before them.
    is_open = (all_slots < known) | (all_slots >= first + size)
    before = all_slots[:, None] <= slots[..., None]
    found, (keys, values) = self.drafted(
      features,
      embedded,
      1,
      (places, all_slots.at[rows, slots].set(places)),
      before & ((order < 0)[:, None] | is_open[:, None]),
      lambda new: tuple(
        cache_lib.write(buffer, x, cache.index)
        for (buffer,), x in zip((cache.keys, cache.values), new, strict=True)
      ),
      *self.of_target(target),
    )
    last = jnp.maximum(new - 1, 0)[:, None, None]
    at_last = jnp.take_along_axis(found, last, axis=1)
    found = jnp.concatenate([at_last, found[:, size:]], axis=1)
    return found, DecoderCache(known[:, 0], (keys,), (values,))

  def everywhere(
    self,
    features: Float[Array, "B L D"],
    embedded: Float[Array, "B L D"],
    same_example: Bool[Array, "B L L"],
    cross: KeyValues | None,
    cross_mask: Bool[Array, "B L E"] | None,
  ) -> Float[Array, "B L d D"]:
    """Returns the drafted features after every position, for training.

    Each position has masks of its own, which see what it sees, and one another in their
    order: L d positions in one pass.
    """
    size, count = features.shape[1], self.config.count
    at, order = jnp.divmod(jnp.arange(size * (count - 1)), count - 1)
    at = jnp.concatenate([jnp.arange(size), at])
    order = jnp.concatenate([jnp.full(size, -1), order])
    of_known = same_example[:, at] & (jnp.arange(size) <= at[:, None])
    of_masks = (at[:, None] == at[None, size:]) & (order[:, None] >= order[None, size:])
    of_masks = jnp.broadcast_to(of_masks, (len(features), *of_masks.shape))
    places = (at + order + 1)[None]
    found, _ = self.drafted(
      features,
      embedded,
      size,
      (places, places),
      jnp.concatenate([of_known, of_masks], axis=-1),
      lambda new: new,
      cross,
      None if cross_mask is None else cross_mask[:, at],
    )
    of_masks = found[:, size:].reshape(len(features), size, count - 1, -1)
    return jnp.concatenate([found[:, :size, None], of_masks], axis=2)
