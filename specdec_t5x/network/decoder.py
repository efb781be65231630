"""The decoder stack, and scoring any number of tokens against a cache.

The encoder-decoder (`transformer`) and the decoder-only network (`gpt`) share this
module.

Shapes: B batch, N block, S slots, D width, V vocabulary.
"""

from collections.abc import Collection
from typing import ClassVar

import flax.linen as nn
import jax
import jax.numpy as jnp
from flax.linen.partitioning import with_sharding_constraint
from jaxtyping import Array, Bool, Float, Int

from specdec_t5x.network import cache as cache_lib
from specdec_t5x.network import hot, tracing
from specdec_t5x.network.attention import (
  KeyValues,
  MultiHeadAttention,
  mask_bias,
  self_biases,
)
from specdec_t5x.network.cache import DecoderCache
from specdec_t5x.network.config import NetworkConfig, Reach
from specdec_t5x.network.inputs import input_mask
from specdec_t5x.network.layers import (
  Dense,
  Embed,
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
    positions=None,
    *,
    deterministic=True,
    without=(),
  ):
    """Returns the block's output and the keys and values of self-attention.

    Args:
      x: input of the block.
      remember: map from the new keys and values to all visible keys and values, for
        example a write into the cache; None if only the new ones are visible.
      bias: bias of self-attention.
      cross: keys and values of the encoded input.
      cross_bias: bias of cross-attention.
      positions: positions of `x`, used if positions are rotary.
      deterministic: whether dropout is disabled.
      without: kinds of sublayers to skip. Without self-attention, the keys and values
        in the result are None.
    """
    key_values = None
    if "self" not in without:
      y = self.pre_self_attention_layer_norm(x)
      query, new = self.self_attention.query_key_values(y, positions)
      visible = key_values = remember(new) if remember else new
      if self.config.merged:
        visible = jax.tree.map(lambda *x: jnp.concatenate(x, axis=2), visible, cross)
        shape = jnp.broadcast_shapes(bias.shape[:-1], cross_bias.shape[:-1])
        parts = [jnp.broadcast_to(x, (*shape, x.shape[-1])) for x in (bias, cross_bias)]
        bias = jnp.concatenate(parts, axis=-1)
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
    if not self.cross_attention:  # T5X keeps a decoder-only embedding here.
      self.token_embedder = Embed(cfg)
    if not cfg.logits_via_embedding:
      axes = cfg.axes("embed", "vocab")
      size = cfg.hot or cfg.vocab_size
      self.logits_dense = Dense(size, axes, products=cfg.products)
      self.hot_places = hot.places(self, cfg.vocab_size) if cfg.hot else None

  def cross_key_values(self, encoded) -> list[KeyValues]:
    """Returns each layer's keys and values of the encoded input."""
    name = "self_attention" if self.config.merged else "encoder_decoder_attention"
    return [
      tracing.call(getattr(layer, name), "key_values", encoded) for layer in self.layers
    ]

  def __call__(
    self,
    x,
    remember,
    biases,
    cross,
    cross_mask,
    positions,
    *,
    deterministic=True,
    without=(),
    taps=1,
  ):
    """Returns the features of positions, and each layer's keys and values.

    `remember`, `biases` and `cross` have an entry for each layer, as in `DecoderLayer`.
    `without` and `taps` are as in `CachedNetwork.extend`.
    """
    cross_bias = None
    if self.cross_attention:
      cross_bias = mask_bias(cross_mask[:, None], self.config.dtype)
    # A layer uses rotary positions only. Other positions need no tracing.
    positions = positions if self.config.is_gemma else None
    x = self.dropout(x, deterministic=deterministic)
    streams = []
    written = []
    for i, layer in enumerate(self.layers):
      inputs = cross[i] if self.cross_attention else None
      arrays = x, remember[i], biases[i], inputs, cross_bias, positions
      if deterministic:
        skipped = tuple(kind for kind in SUBLAYERS if f"{kind}_{i}" in without)
        x, key_values = tracing.call(layer, "__call__", *arrays, without=skipped)
      else:
        x, key_values = layer(*arrays, deterministic=False)
      streams.append(x)
      written.append(key_values)
    x = self.dropout(self.decoder_norm(x), deterministic=deterministic)
    depths = [-(-len(streams) * i // taps) for i in range(1, taps)]
    features = [*(streams[depth - 1] for depth in depths), x]
    return jnp.concatenate(features, axis=-1), written

  def project(self, features):
    """Returns the logits of features by a projection apart from the embedding."""
    logits = self.logits_dense(features)
    return hot.spread(logits, self.hot_places) if self.config.hot else logits


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
    stored = list(zip(cache.keys, cache.values, strict=True))
    features, written = self.decoder(
      self.token_embedder(self.started(tokens, positions == 0)),
      [jax.tree_util.Partial(cache_lib.write_both, x, index) for x in stored],
      self_biases(self.decoder, positions, key_positions, visible),
      list(zip(cache.cross_keys, cache.cross_values, strict=True)),
      None if cache.encoder_mask is None else cache.encoder_mask[:, None],
      positions,
      without=without,
      taps=taps,
    )
    # A layer without self-attention keeps the cache.
    written = [new or old for new, old in zip(written, stored, strict=True)]
    keys, values = zip(*written, strict=True)
    cache = cache.replace(index=index + size, keys=keys, values=values)
    logits = self.logits(features[..., -self.config.emb_dim :])
    return logits, features, cache

  def features(
    self,
    decoder_input_tokens,
    decoder_target_tokens,
    decoder_segment_ids=None,
    *,
    cross=(),
    cross_mask=None,
    enable_dropout=True,
    taps=1,
  ):
    """Returns the features [B, L, D] from which the logits of targets are computed.

    `cross` has each layer's keys and values of the encoded input. `taps` is as in
    `extend`.
    """
    length = decoder_input_tokens.shape[1]
    positions = jnp.arange(length)
    is_target = input_mask(decoder_target_tokens)
    mask = jnp.tri(length, dtype=bool) & is_target[:, :, None] & is_target[:, None, :]
    is_first = jnp.broadcast_to(positions == 0, decoder_input_tokens.shape)
    if decoder_segment_ids is not None:
      is_new_segment = decoder_segment_ids[:, 1:] != decoder_segment_ids[:, :-1]
      is_first = is_first.at[:, 1:].set(is_new_segment)
    mask = mask & same_segment(decoder_segment_ids, decoder_segment_ids)
    features, _ = self.decoder(
      self.token_embedder(self.started(decoder_input_tokens, is_first)),
      [None] * self.config.num_decoder_layers,
      self_biases(self.decoder, positions, positions, mask),
      cross,
      cross_mask,
      positions,
      deterministic=not enable_dropout,
      taps=taps,
    )
    return features

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

  def extend_collection(self, cache: DecoderCache, tokens, lengths=None):
    """Returns the logits of tokens after the collection, and adds the tokens to it.

    Args:
      cache: a cache with the input, if there is an encoder.
      tokens: the new tokens.
      lengths: index of the collection after the call, by default after the tokens.
    """
    index = self.get_variable("cache", "cache_index")
    keys, values = (self.get_variable("cache", name) for name in ("keys", "values"))
    layers = [f"layers_{i}" for i in range(self.config.num_decoder_layers)]
    cache = cache.replace(
      index=jnp.broadcast_to(index, (tokens.shape[0],)),
      keys=tuple(keys[layer] for layer in layers),
      values=tuple(values[layer] for layer in layers),
    )
    logits, _, cache = self.extend(cache, tokens)
    self.put_collection(cache, index + tokens.shape[1] if lengths is None else lengths)
    return logits

  def put_collection(self, cache: DecoderCache, index) -> None:
    """Puts a cache and an index of all rows in the collection."""
    # T5X does not expand the leaf named cache_index when a batch is expanded to beams.
    self.put_variable("cache", "cache_index", index)
    for name, arrays in (("keys", cache.keys), ("values", cache.values)):
      by_layer = {f"layers_{i}": array for i, array in enumerate(arrays)}
      self.put_variable("cache", name, by_layer)


def same_segment(query_ids, key_ids) -> Bool[Array, "B Q S"] | bool:
  """Returns which keys are in the query's packed example; True without packing."""
  if query_ids is None or key_ids is None:
    return True
  return query_ids[:, :, None] == key_ids[:, None, :]
