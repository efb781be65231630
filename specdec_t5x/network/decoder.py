"""The decoder stack, and scoring any number of tokens against a cache.

The encoder-decoder (`transformer`) and the decoder-only network (`gpt`) share this
module.

Shapes: B batch, N block, S slots, D width, V vocabulary.
"""

import functools
from collections.abc import Collection
from typing import ClassVar

import flax.linen as nn
import jax.numpy as jnp
from flax.linen.partitioning import with_sharding_constraint
from jaxtyping import Array, Bool, Float, Int

from specdec_t5x.network import cache as cache_lib
from specdec_t5x.network import hot, tracing
from specdec_t5x.network.attention import (
  KeyValues,
  MultiHeadAttention,
  beside,
  mask_bias,
  self_biases,
)
from specdec_t5x.network.cache import DecoderCache
from specdec_t5x.network.config import NetworkConfig, Reach
from specdec_t5x.network.layers import (
  Dense,
  LayerNorm,
  MlpBlock,
  RelativePositionBias,
  dropout,
  post_norm,
)
from specdec_t5x.network.products import capped

# Kinds of sublayers. A sublayer's name is a kind and a layer: 'self_3', 'mlp_5'.
SUBLAYERS = ("self", "cross", "mlp")


class DecoderLayer(nn.Module):
  """Self-attention, cross-attention if any, feed-forward; pre-norm and residual.

  T5Gemma also has norms after sublayers. T5Gemma 2 merges cross-attention into
  self-attention.
  """

  config: NetworkConfig
  cross_attention: bool = True
  reach: Reach | None = None

  def setup(self):
    cfg = self.config
    self.pre_self_attention_layer_norm = LayerNorm(cfg)
    self.self_attention = MultiHeadAttention(cfg, self.reach)
    self.post_self_attention_layer_norm = post_norm(cfg)
    if self.cross_attention and not cfg.merged:
      self.pre_cross_attention_layer_norm = LayerNorm(cfg)
      self.encoder_decoder_attention = MultiHeadAttention(cfg)
      self.post_cross_attention_layer_norm = post_norm(cfg)
    self.pre_mlp_layer_norm = LayerNorm(cfg)
    self.mlp = MlpBlock(cfg)
    self.post_mlp_layer_norm = post_norm(cfg)
    if cfg.relpos_per_layer:
      self.relpos_bias = RelativePositionBias(cfg, bidirectional=False)
    self.dropout = dropout(cfg)

  def __call__(
    self,
    x,
    remember,
    bias,
    cross=None,
    cross_bias=None,
    deterministic=True,
    *,
    without=(),
    positions=None,
  ):
    """Returns the block's output and the keys and values of self-attention.

    Args:
      x: input of the block.
      remember: map from the new keys and values to all visible keys and values: the
        identity in training, a write into the cache in decoding.
      bias: bias of self-attention.
      cross: keys and values of the encoded input.
      cross_bias: bias of cross-attention.
      deterministic: whether dropout is disabled.
      without: kinds of sublayers to skip. Without self-attention, the keys and values
        in the result are None.
      positions: positions of `x`, used if positions are rotary.
    """
    key_values = None
    if "self" not in without:
      y = self.pre_self_attention_layer_norm(x)
      query, new = self.self_attention.query_key_values(y, positions)
      key_values = remember(new)
      visible = key_values
      if self.config.merged:
        visible, bias = beside(key_values, bias, cross, cross_bias)
      y = self.self_attention(query, visible, bias, deterministic)
      y = self.post_self_attention_layer_norm(y)
      x = x + self.dropout(y, deterministic=deterministic)
    if self.cross_attention and not self.config.merged and "cross" not in without:
      y = self.pre_cross_attention_layer_norm(x)
      attention = self.encoder_decoder_attention
      y = attention(attention.queries(y), cross, cross_bias, deterministic)
      y = self.post_cross_attention_layer_norm(y)
      x = x + self.dropout(y, deterministic=deterministic)
    if "mlp" not in without:
      y = self.mlp(self.pre_mlp_layer_norm(x), deterministic)
      y = self.post_mlp_layer_norm(y)
      x = x + self.dropout(y, deterministic=deterministic)
    return x, key_values

  def extend(
    self, x, buffers, index, bias, cross, cross_bias, positions=None, *, without
  ):
    """Like `__call__`, but writes new keys and values to `buffers` at `index`."""
    remember = functools.partial(cache_lib.write_both, buffers, index)
    x, key_values = self(
      x, remember, bias, cross, cross_bias, without=without, positions=positions
    )
    return x, key_values or buffers


class Decoder(nn.Module):
  """The decoder stack over embedded tokens."""

  config: NetworkConfig
  cross_attention: bool = True

  def setup(self):
    cfg = self.config
    reaches = cfg.reaches(cfg.num_decoder_layers, is_encoder=False)
    if not cfg.relpos_per_layer and not cfg.is_gemma:
      self.relpos_bias = RelativePositionBias(cfg, bidirectional=False)
    self.layers = [DecoderLayer(cfg, self.cross_attention, reach) for reach in reaches]
    self.decoder_norm = LayerNorm(cfg)
    self.dropout = dropout(cfg)
    if not cfg.logits_via_embedding:
      axes = cfg.axes("embed", "vocab")
      size = cfg.hot or cfg.vocab_size
      self.logits_dense = Dense(size, axes, products=cfg.products)
      self.hot_places = hot.places(self, cfg.vocab_size) if cfg.hot else None

  def cross_key_values(self, encoded) -> list[KeyValues]:
    """Returns each layer's keys and values of the encoded input."""
    name = "self_attention" if self.config.merged else "encoder_decoder_attention"
    attentions = [getattr(layer, name) for layer in self.layers]
    return [tracing.call(module, "key_values", encoded) for module in attentions]

  def biases(self, query_positions, key_positions, mask):
    """Returns each layer's self-attention bias: positions and mask."""
    return self_biases(self, query_positions, key_positions, mask)

  def __call__(
    self,
    x,
    biases,
    cross=(),
    cross_mask=None,
    deterministic=True,
    positions=None,
    taps=1,
  ):
    """Returns the features of whole sequences."""
    cross_bias = self._cross_bias(cross_mask)
    x = self.dropout(x, deterministic=deterministic)
    streams = []
    cross = self._by_layer(cross)
    for layer, bias, inputs in zip(self.layers, biases, cross, strict=True):
      x, _ = layer(
        x, lambda new: new, bias, inputs, cross_bias, deterministic, positions=positions
      )
      streams.append(x)
    x = self.dropout(self.decoder_norm(x), deterministic=deterministic)
    return _beside(streams, x, taps)

  def extend(
    self,
    x,
    cache: DecoderCache,
    biases,
    without,
    positions=None,
    taps=1,
  ):
    """Returns the features of new positions, and each layer's keys and values."""
    mask = cache.encoder_mask
    cross_bias = self._cross_bias(None if mask is None else mask[:, None])
    buffers = list(zip(cache.keys, cache.values, strict=True))
    cross = self._by_layer(zip(cache.cross_keys, cache.cross_values, strict=True))
    written = []
    streams = []
    for i, layer in enumerate(self.layers):
      x, key_values = tracing.call(
        layer,
        "extend",
        x,
        buffers[i],
        cache.index,
        biases[i],
        cross[i],
        cross_bias,
        # A layer uses rotary positions only. Other positions need no tracing.
        positions if self.config.is_gemma else None,
        without=tuple(kind for kind in SUBLAYERS if f"{kind}_{i}" in without),
      )
      written.append(key_values)
      streams.append(x)
    return _beside(streams, self.decoder_norm(x), taps), written

  def project(self, features):
    """Returns the logits of features by a projection apart from the embedding."""
    logits = self.logits_dense(features)
    return hot.spread(logits, self.hot_places) if self.config.hot else logits

  def _cross_bias(self, mask):
    if not self.cross_attention:
      return None
    return mask_bias(mask[:, None], self.config.dtype)

  def _by_layer(self, cross):
    return list(cross) or [None] * len(self.layers)


class CachedNetwork(nn.Module):
  """A network with a `decoder` and a `token_embedder`, decoded against a cache.

  The cache has one index per row. Subclasses define the initial cache, and keep the
  cache in the mutable collection "cache" for T5X's samplers.
  """

  config: NetworkConfig

  cross_attention: ClassVar[bool] = True

  @property
  def sublayers(self) -> tuple[str, ...]:
    """The names of the decoder's sublayers, kind by kind."""
    has_cross = self.cross_attention and not self.config.merged
    kinds = [kind for kind in SUBLAYERS if kind != "cross" or has_cross]
    layers = range(self.config.num_decoder_layers)
    return tuple(f"{kind}_{i}" for kind in kinds for i in layers)

  def extend(
    self,
    cache: DecoderCache,
    tokens: Int[Array, "B N"],
    positions: Int[Array, "B M"] | None = None,
    tree: Bool[Array, "B N M"] | None = None,
    without: Collection[str] = (),
    taps: int = 1,
  ) -> tuple[Float[Array, "B N V"], Float[Array, "B N _"], DecoderCache]:
    """Scores N tokens per row after the row's committed tokens.

    Args:
      cache: cache with at least N free slots at each row's index.
      tokens: new tokens. Slots index .. index+N-1 are overwritten.
      positions: positions in the sequence of the last M entries, new entries included;
        the slots by default, prefix + depth with a `tree`.
      tree: which of the last M entries each new entry sees, itself included; by default
        a chain, in which each entry sees all entries before.
      without: names of sublayers to skip. A layer without self-attention does not read
        or write the cache.
      taps: number of depths with features in the result. The features are concatenated,
        the last depth last.

    Returns:
      The float32 logits of the token after each new token, the features behind the
      logits, and the cache with the N entries committed (`cache.at` rolls back).
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
    positions = positions[:, -size:]
    features, written = self.decoder.extend(
      self.token_embedder(self.started(tokens, positions == 0)),
      cache,
      self.decoder.biases(positions, key_positions, visible),
      without,
      positions,
      taps,
    )
    cache = cache.replace(
      index=index + size,
      keys=tuple(key for key, _ in written),
      values=tuple(value for _, value in written),
    )
    logits = self.logits(features[..., -self.config.emb_dim :])
    return logits, features, cache

  def logits(self, features: Float[Array, "*B D"]) -> Float[Array, "*B V"]:
    """Returns the float32 logits of decoder features."""
    tied = self.config.logits_via_embedding
    head = self.token_embedder.attend if tied else self.decoder.project
    return capped(head(features), self.config.logits_cap)

  def started(
    self, tokens: Int[Array, "B N"], is_first: Bool[Array, "#B N"]
  ) -> Int[Array, "B N"]:
    """Returns tokens with the network's start token in place of T5X's start token 0.

    All code around a network starts sequences with 0, as T5X does, even if the
    network's start token is another.
    """
    start = self.config.start_token
    return jnp.where(is_first & (tokens == 0), start, tokens) if start else tokens

  def embed(self, tokens: Int[Array, "*B"]) -> Float[Array, "*B D"]:
    """Returns the embeddings that the decoder reads."""
    return self.token_embedder(tokens)

  def empty_cache(self, rows: int, num_slots: int) -> DecoderCache:
    """Returns a cache of `num_slots` tokens per row, without an encoded input."""
    cfg = self.config
    shape = (rows, cfg.kv_heads, num_slots, cfg.head_dim)
    empty = self.by_heads(jnp.zeros(shape, cfg.dtype))
    layers = (empty,) * cfg.num_decoder_layers
    return DecoderCache(jnp.zeros(rows, jnp.int32), keys=layers, values=layers)

  def by_heads(self, keys: Float[Array, "B H S K"]) -> Float[Array, "B H S K"]:
    """Returns keys or values, divided over devices by the partitioner's rules."""
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

  def extend_collection(self, cache: DecoderCache, tokens, lengths=None):
    """Returns logits of tokens after a cache, and puts the cache in the collection.

    The collection's index becomes `lengths`, by default the index after the tokens.
    """
    logits, _, cache = self.extend(cache, tokens)
    if lengths is None:
      lengths = self.get_variable("cache", "cache_index") + tokens.shape[1]
    self._put_cache(cache, lengths)
    return logits

  def _put_cache(self, cache, index):
    # T5X does not expand the leaf named cache_index when a batch is expanded to beams.
    self.put_variable("cache", "cache_index", index)
    for name, arrays in (("keys", cache.keys), ("values", cache.values)):
      by_layer = {f"layers_{i}": array for i, array in enumerate(arrays)}
      self.put_variable("cache", name, by_layer)


def _beside(streams, features, taps):
  """Returns the outputs of layers at even depths and the features, concatenated."""
  depths = [-(-len(streams) * i // taps) for i in range(1, taps)]
  return jnp.concatenate([*(streams[depth - 1] for depth in depths), features], axis=-1)


def same_segment(query_ids, key_ids) -> Bool[Array, "B Q S"] | bool:
  """Returns which keys are in the query's packed example; True without packing."""
  if query_ids is None or key_ids is None:
    return True
  return query_ids[:, :, None] == key_ids[:, None, :]
