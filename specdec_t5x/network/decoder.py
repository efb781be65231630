"""The decoder stack, and scoring any number of tokens against its cache.

What the encoder-decoder (`transformer`) and the decoder-only network (`gpt`) share.

Shapes: B batch, N block, S slots, D width, V vocabulary.
"""

from collections.abc import Mapping
from typing import ClassVar

import flax.linen as nn
import jax
import jax.numpy as jnp
from flax.linen.partitioning import with_sharding_constraint
from jaxtyping import Array, Bool, Float, Int

from specdec_t5x.network import cache as cache_lib
from specdec_t5x.network.attention import KeyValues, MultiHeadAttention, mask_bias
from specdec_t5x.network.cache import DecoderCache
from specdec_t5x.network.config import NetworkConfig
from specdec_t5x.network.layers import (
  Dense,
  LayerNorm,
  MlpBlock,
  RelativePositionBias,
  dropout,
)

# What a sublayer adds is multiplied by its gate, by names as 'self_3', 'cross_0' and
# 'mlp_5'. A gate that is known when programs are compiled is 1, as are those of
# sublayers that are not named, or 0: then the sublayer is not computed at all.
Gates = Mapping[str, int | Float[Array, ""]]
SUBLAYERS = ("self", "cross", "mlp")


class DecoderLayer(nn.Module):
  """Self-attention, cross-attention if any, feed-forward; pre-norm and residual."""

  config: NetworkConfig
  cross_attention: bool = True

  def setup(self):
    cfg = self.config
    self.pre_self_attention_layer_norm = LayerNorm(cfg)
    self.self_attention = MultiHeadAttention(cfg)
    if self.cross_attention:
      self.pre_cross_attention_layer_norm = LayerNorm(cfg)
      self.encoder_decoder_attention = MultiHeadAttention(cfg)
    self.pre_mlp_layer_norm = LayerNorm(cfg)
    self.mlp = MlpBlock(cfg)
    self.dropout = dropout(cfg)

  def __call__(
    self,
    x,
    remember,
    bias,
    cross=None,
    cross_bias=None,
    deterministic=True,
    gates=(1, 1, 1),
  ):
    """Returns the block's output and the keys and values that it attended to.

    `remember` maps the new keys and values to all that the block may attend to: the
    identity in training, a write into the cache in decoding. Without self-attention
    there are none, and None is returned. `gates` are those of `SUBLAYERS`.
    """
    key_values, (of_self, of_cross, of_mlp) = None, gates
    if _runs(of_self):
      y = self.pre_self_attention_layer_norm(x)
      query, new = self.self_attention.query_key_values(y)
      key_values = remember(new)
      y = self.self_attention(query, key_values, bias, deterministic)
      x = x + _gated(of_self, self.dropout(y, deterministic=deterministic))
    if self.cross_attention and _runs(of_cross):
      y = self.pre_cross_attention_layer_norm(x)
      query = self.encoder_decoder_attention.queries(y)
      y = self.encoder_decoder_attention(query, cross, cross_bias, deterministic)
      x = x + _gated(of_cross, self.dropout(y, deterministic=deterministic))
    if _runs(of_mlp):
      y = self.mlp(self.pre_mlp_layer_norm(x), deterministic)
      x = x + _gated(of_mlp, self.dropout(y, deterministic=deterministic))
    return x, key_values


def _runs(gate) -> bool:
  """Returns whether a sublayer has to be computed."""
  return isinstance(gate, jax.Array) or gate == 1


def _gated(gate, y):
  return gate.astype(y.dtype) * y if isinstance(gate, jax.Array) else y


class Decoder(nn.Module):
  """The decoder stack over embedded tokens."""

  config: NetworkConfig
  cross_attention: bool = True

  def setup(self):
    cfg = self.config
    self.relpos_bias = RelativePositionBias(cfg, bidirectional=False)
    self.layers = [
      DecoderLayer(cfg, self.cross_attention) for _ in range(cfg.num_decoder_layers)
    ]
    self.decoder_norm = LayerNorm(cfg)
    self.dropout = dropout(cfg)
    if not cfg.logits_via_embedding:
      axes = cfg.axes("embed", "vocab")
      self.logits_dense = Dense(cfg.vocab_size, axes, products=cfg.products)

  def cross_key_values(self, encoded) -> list[KeyValues]:
    """Returns each layer's keys and values of the encoded input."""
    return [m.encoder_decoder_attention.key_values(encoded) for m in self.layers]

  def bias(self, query_positions, key_positions, mask):
    """Returns the self-attention bias, positions and mask, that all layers share."""
    relative = self.relpos_bias(query_positions, key_positions)
    return relative + mask_bias(mask[:, None], self.config.dtype)

  def __call__(
    self,
    x,
    remember,
    bias,
    cross=(),
    cross_mask=None,
    deterministic=True,
    gates: Gates | None = None,
  ):
    cross_bias = None
    if self.cross_attention:
      cross_bias = mask_bias(cross_mask[:, None], self.config.dtype)
    x = self.dropout(x, deterministic=deterministic)
    all_key_values, gates = [], gates or {}
    for i, (layer, remember_layer, cross_layer) in enumerate(
      zip(self.layers, remember, cross or [None] * len(self.layers), strict=True)
    ):
      of_layer = [gates.get(f"{kind}_{i}", 1) for kind in SUBLAYERS]
      x, key_values = layer(
        x, remember_layer, bias, cross_layer, cross_bias, deterministic, of_layer
      )
      all_key_values.append(key_values)
    features = self.dropout(self.decoder_norm(x), deterministic=deterministic)
    return features, all_key_values


class CachedNetwork(nn.Module):
  """A network with a `decoder` and a `token_embedder`, decoded against a cache.

  The cache has one index a row. Subclasses say how it starts, and hold it in T5X's
  mutable collection "cache" for T5X's own samplers.
  """

  config: NetworkConfig

  cross_attention: ClassVar[bool] = True

  @property
  def sublayers(self) -> tuple[str, ...]:
    """The names of what the decoder's layers add to their input, kind by kind."""
    kinds = [kind for kind in SUBLAYERS if kind != "cross" or self.cross_attention]
    layers = range(self.config.num_decoder_layers)
    return tuple(f"{kind}_{i}" for kind in kinds for i in layers)

  def extend(
    self,
    cache: DecoderCache,
    tokens: Int[Array, "B N"],
    positions: Int[Array, "B M"] | None = None,
    tree: Bool[Array, "B N M"] | None = None,
    gates: Gates | None = None,
  ) -> tuple[Float[Array, "B N V"], Float[Array, "B N D"], DecoderCache]:
    """Scores N tokens a row after the row's committed ones.

    Args:
      cache: with at least N free slots at each row's index.
      tokens: written to slots index .. index+N-1, over whatever was there.
      positions: of the last M entries, the new ones among them, in the sequence; by
        default their slots.
      tree: which of the last M entries each new one sees, itself included; by default
        a chain, each seeing those before it. With it, `positions` is prefix + depth.
      gates: of sublayers, by name. A layer whose self-attention is left out reads and
        writes no cache.

    Returns:
      float32 logits of the token after each one, the features that they were computed
      from, and the cache with the N entries committed (`cache.at` takes some back).
    """
    index, size = cache.index, tokens.shape[1]
    if tree is None:
      tree = jnp.broadcast_to(jnp.tri(size, dtype=bool), (*tokens.shape, size))
    slots = index[:, None] + size - tree.shape[2] + jnp.arange(tree.shape[2])
    positions = slots if positions is None else positions
    rows = jnp.arange(tokens.shape[0])[:, None]
    key_positions = jnp.broadcast_to(
      jnp.arange(cache.num_slots), (tokens.shape[0], cache.num_slots)
    )
    key_positions = key_positions.at[rows, slots].set(positions)
    visible = cache_lib.block_mask(index, cache.num_slots, tree)
    return self.extend_slots(cache, tokens, key_positions, visible, gates)

  def extend_slots(
    self,
    cache: DecoderCache,
    tokens: Int[Array, "B N"],
    key_positions: Int[Array, "B S"],
    visible: Bool[Array, "B N S"],
    gates: Gates | None = None,
  ) -> tuple[Float[Array, "B N V"], Float[Array, "B N D"], DecoderCache]:
    """As `extend`, for a cache whose slots the caller assigns.

    Several hypotheses may share a row: the caller says what is where.

    Args:
      cache: with at least N free slots at each row's index.
      tokens: written to slots index .. index+N-1, over whatever was there.
      key_positions: where in its sequence the token of each slot stands, of these
        tokens, too; of any value where no token looks.
      visible: which slots each token sees; its own must be among them.
      gates: as `extend`'s.
    """
    rows = jnp.arange(tokens.shape[0])[:, None]
    slots = cache.index[:, None] + jnp.arange(tokens.shape[1])

    def remember(keys, values):
      return lambda new: (
        cache_lib.write(keys, new[0], cache.index),
        cache_lib.write(values, new[1], cache.index),
      )

    features, written = self.decoder(
      self.token_embedder(tokens),
      [remember(k, v) for k, v in zip(cache.keys, cache.values, strict=True)],
      self.decoder.bias(key_positions[rows, slots], key_positions, visible),
      list(zip(cache.cross_keys, cache.cross_values, strict=True)),
      None if cache.encoder_mask is None else cache.encoder_mask[:, None, :],
      gates=gates,
    )
    known = zip(cache.keys, cache.values, strict=True)
    written = [new or old for new, old in zip(written, known, strict=True)]
    cache = cache.replace(
      index=cache.index + tokens.shape[1],
      keys=tuple(key for key, _ in written),
      values=tuple(value for _, value in written),
    )
    return self.logits(features), features, cache

  def logits(self, features: Float[Array, "*B D"]) -> Float[Array, "*B V"]:
    """Returns the float32 logits of decoder features."""
    if self.config.logits_via_embedding:
      return self.token_embedder.attend(features)
    return self.decoder.logits_dense(features)

  def embed(self, tokens: Int[Array, "*B"]) -> Float[Array, "*B D"]:
    """Returns the embeddings that the decoder reads."""
    return self.token_embedder(tokens)

  def empty_cache(self, rows: int, num_slots: int) -> DecoderCache:
    """Returns a cache of `num_slots` tokens a row that knows of no input."""
    cfg = self.config
    shape = (rows, cfg.num_heads, num_slots, cfg.head_dim)
    empty = self.by_heads(jnp.zeros(shape, cfg.dtype))
    layers = (empty,) * cfg.num_decoder_layers
    return DecoderCache(jnp.zeros(rows, jnp.int32), keys=layers, values=layers)

  def by_heads(self, keys: Float[Array, "B H S K"]) -> Float[Array, "B H S K"]:
    """Returns keys or values, divided over devices as the partitioner's rules say."""
    axes = ("batch", *self.config.axes("heads"), None, None)
    return with_sharding_constraint(keys, axes)

  # ---- The cache as T5X's collection. ----

  def _read_cache(self, rows: int) -> DecoderCache:
    layers = [f"layers_{i}" for i in range(self.config.num_decoder_layers)]
    keys, values = (self.get_variable("cache", name) for name in ("keys", "values"))
    return DecoderCache(
      index=jnp.broadcast_to(self.get_variable("cache", "cache_index"), (rows,)),
      keys=tuple(keys[layer] for layer in layers),
      values=tuple(values[layer] for layer in layers),
    )

  def _put_cache(self, cache, index):
    # T5X leaves the leaf called cache_index alone when it expands a batch to beams.
    self.put_variable("cache", "cache_index", index)
    for name, arrays in (("keys", cache.keys), ("values", cache.values)):
      by_layer = {f"layers_{i}": array for i, array in enumerate(arrays)}
      self.put_variable("cache", name, by_layer)


def same_segment(query_ids, key_ids) -> Bool[Array, "B Q S"] | bool:
  """Returns which keys are of the query's packed example; True where none is packed."""
  if query_ids is None or key_ids is None:
    return True
  return query_ids[:, :, None] == key_ids[:, None, :]
