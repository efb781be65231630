"""The T5 encoder-decoder in Flax linen, with T5X's parameter names and logical axes.

Two ways to decode: `start` and `extend`, which score any number of tokens against a
cache with one index a row (what this project decodes with), and T5X's own interface
(`decode(..., decode=True)`), so that T5X's samplers run on this network too.

Shapes: B batch, L decoder length, E encoder length, N block, S slots, D width, V
vocabulary.
"""

import flax.linen as nn
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from specdec_t5x.network import cache as cache_lib
from specdec_t5x.network.attention import KeyValues, MultiHeadAttention, mask_bias
from specdec_t5x.network.cache import DecoderCache
from specdec_t5x.network.config import T5Config
from specdec_t5x.network.layers import (
  Dense,
  Embed,
  LayerNorm,
  MlpBlock,
  RelativePositionBias,
  dropout,
)


class EncoderLayer(nn.Module):
  """Self-attention and feed-forward, each with pre-norm and residual."""

  config: T5Config

  def setup(self):
    cfg = self.config
    self.pre_attention_layer_norm = LayerNorm(cfg.dtype)
    self.attention = MultiHeadAttention(cfg)
    self.pre_mlp_layer_norm = LayerNorm(cfg.dtype)
    self.mlp = MlpBlock(cfg)
    self.dropout = dropout(cfg)

  def __call__(self, x, bias, deterministic):
    y = self.pre_attention_layer_norm(x)
    y = self.attention(y, self.attention.key_values(y), bias, deterministic)
    x = x + self.dropout(y, deterministic=deterministic)
    y = self.mlp(self.pre_mlp_layer_norm(x), deterministic)
    return x + self.dropout(y, deterministic=deterministic)


class DecoderLayer(nn.Module):
  """Self-attention, cross-attention and feed-forward, pre-norm and residual."""

  config: T5Config

  def setup(self):
    cfg = self.config
    self.pre_self_attention_layer_norm = LayerNorm(cfg.dtype)
    self.self_attention = MultiHeadAttention(cfg)
    self.pre_cross_attention_layer_norm = LayerNorm(cfg.dtype)
    self.encoder_decoder_attention = MultiHeadAttention(cfg)
    self.pre_mlp_layer_norm = LayerNorm(cfg.dtype)
    self.mlp = MlpBlock(cfg)
    self.dropout = dropout(cfg)

  def __call__(self, x, remember, bias, cross, cross_bias, deterministic=True):
    """Returns the block's output and the keys and values that it attended to.

    `remember` maps the new keys and values to all that the block may attend to: the
    identity in training, a write into the cache in decoding.
    """
    y = self.pre_self_attention_layer_norm(x)
    key_values = remember(self.self_attention.key_values(y))
    y = self.self_attention(y, key_values, bias, deterministic)
    x = x + self.dropout(y, deterministic=deterministic)
    y = self.pre_cross_attention_layer_norm(x)
    y = self.encoder_decoder_attention(y, cross, cross_bias, deterministic)
    x = x + self.dropout(y, deterministic=deterministic)
    y = self.mlp(self.pre_mlp_layer_norm(x), deterministic)
    return x + self.dropout(y, deterministic=deterministic), key_values


class Encoder(nn.Module):
  """The encoder stack over embedded tokens."""

  config: T5Config

  def setup(self):
    cfg = self.config
    self.relpos_bias = RelativePositionBias(cfg, bidirectional=True)
    self.layers = [EncoderLayer(cfg) for _ in range(cfg.num_encoder_layers)]
    self.encoder_norm = LayerNorm(cfg.dtype)
    self.input_dropout = dropout(cfg)
    self.output_dropout = nn.Dropout(cfg.dropout_rate)

  def __call__(self, x, mask, deterministic):
    positions = jnp.arange(x.shape[1])
    bias = self.relpos_bias(positions, positions)
    bias = bias + mask_bias(mask[:, None], self.config.dtype)
    x = self.input_dropout(x, deterministic=deterministic)
    for layer in self.layers:
      x = layer(x, bias, deterministic)
    return self.output_dropout(self.encoder_norm(x), deterministic=deterministic)


class Decoder(nn.Module):
  """The decoder stack over embedded tokens."""

  config: T5Config

  def setup(self):
    cfg = self.config
    self.relpos_bias = RelativePositionBias(cfg, bidirectional=False)
    self.layers = [DecoderLayer(cfg) for _ in range(cfg.num_decoder_layers)]
    self.decoder_norm = LayerNorm(cfg.dtype)
    self.dropout = dropout(cfg)
    if not cfg.logits_via_embedding:
      self.logits_dense = Dense(cfg.vocab_size, ("embed", "vocab"), "float32")

  def cross_key_values(self, encoded) -> list[KeyValues]:
    """Returns each layer's keys and values of the encoded input."""
    return [m.encoder_decoder_attention.key_values(encoded) for m in self.layers]

  def bias(self, query_positions, key_positions, mask):
    """Returns the self-attention bias, positions and mask, that all layers share."""
    relative = self.relpos_bias(query_positions, key_positions)
    return relative + mask_bias(mask[:, None], self.config.dtype)

  def __call__(self, x, remember, bias, cross, cross_mask, deterministic=True):
    cross_bias = mask_bias(cross_mask[:, None], self.config.dtype)
    x = self.dropout(x, deterministic=deterministic)
    all_key_values = []
    for layer, remember_layer, cross_layer in zip(
      self.layers, remember, cross, strict=True
    ):
      x, key_values = layer(
        x, remember_layer, bias, cross_layer, cross_bias, deterministic
      )
      all_key_values.append(key_values)
    features = self.dropout(self.decoder_norm(x), deterministic=deterministic)
    return features, all_key_values


class Transformer(nn.Module):
  """A T5 model; parameters interchange with T5X's `examples/t5` network."""

  config: T5Config

  def setup(self):
    self.token_embedder = Embed(self.config)
    self.encoder = Encoder(self.config)
    self.decoder = Decoder(self.config)

  # ---- Decoding with a cache that has one index a row. ----

  def start(
    self,
    encoded: Float[Array, "B E D"],
    encoder_input_tokens: Int[Array, "B E"],
    num_slots: int,
  ) -> DecoderCache:
    """Returns an empty cache of `num_slots` tokens a row for these inputs."""
    cfg, cross = self.config, self.decoder.cross_key_values(encoded)
    shape = (encoded.shape[0], cfg.num_heads, num_slots, cfg.head_dim)
    empty = tuple(jnp.zeros(shape, cfg.dtype) for _ in cross)
    return DecoderCache(
      index=jnp.zeros(encoded.shape[0], jnp.int32),
      keys=empty,
      values=empty,
      cross_keys=tuple(key for key, _ in cross),
      cross_values=tuple(value for _, value in cross),
      encoder_mask=encoder_input_tokens > 0,
    )

  def extend(
    self,
    cache: DecoderCache,
    tokens: Int[Array, "B N"],
    positions: Int[Array, "B N"] | None = None,
    tree: Bool[Array, "B N N"] | None = None,
  ) -> tuple[Float[Array, "B N V"], Float[Array, "B N D"], DecoderCache]:
    """Scores N tokens a row after the row's committed ones.

    Args:
      cache: with at least N free slots at each row's index.
      tokens: written to slots index .. index+N-1, over whatever was there.
      positions: of the tokens in the sequence; by default their slots.
      tree: which tokens of the block each one sees, itself included; by default a
        chain, each seeing those before it. With a tree, `positions` is prefix + depth.

    Returns:
      float32 logits of the token after each one, the features that they were computed
      from, and the cache with the N entries committed (`cache.at` takes some back).
    """
    index, size = cache.index, tokens.shape[1]
    slots = index[:, None] + jnp.arange(size)
    positions = slots if positions is None else positions
    if tree is None:
      tree = jnp.broadcast_to(jnp.tri(size, dtype=bool), (*tokens.shape, size))
    rows = jnp.arange(tokens.shape[0])[:, None]
    key_positions = jnp.broadcast_to(
      jnp.arange(cache.num_slots), (tokens.shape[0], cache.num_slots)
    )
    key_positions = key_positions.at[rows, slots].set(positions)
    visible = cache_lib.block_mask(index, cache.num_slots, tree)
    return self.extend_slots(cache, tokens, key_positions, visible)

  def extend_slots(
    self,
    cache: DecoderCache,
    tokens: Int[Array, "B N"],
    key_positions: Int[Array, "B S"],
    visible: Bool[Array, "B N S"],
  ) -> tuple[Float[Array, "B N V"], Float[Array, "B N D"], DecoderCache]:
    """As `extend`, for a cache whose slots the caller assigns.

    Several hypotheses may share a row: the caller says what is where.

    Args:
      cache: with at least N free slots at each row's index.
      tokens: written to slots index .. index+N-1, over whatever was there.
      key_positions: where in its sequence the token of each slot stands, of these
        tokens, too; of any value where no token looks.
      visible: which slots each token sees; its own must be among them.
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
      cache.encoder_mask[:, None, :],
    )
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

  # ---- T5X's network interface. ----

  def encode(self, encoder_input_tokens, encoder_segment_ids=None, enable_dropout=True):
    """Returns the encoded input [B, E, D]."""
    is_token = encoder_input_tokens > 0
    mask = is_token[:, :, None] & is_token[:, None, :]
    mask = mask & _same_segment(encoder_segment_ids, encoder_segment_ids)
    x = self.token_embedder(encoder_input_tokens)
    return self.encoder(x, mask, deterministic=not enable_dropout)

  def decode(
    self,
    encoded,
    encoder_input_tokens,
    decoder_input_tokens,
    decoder_target_tokens,
    encoder_segment_ids=None,
    decoder_segment_ids=None,
    decoder_positions=None,
    enable_dropout=True,
    decode=False,
    max_decode_length=None,
  ):
    """Returns the logits [B, L, V] of the decoder under teacher forcing.

    With `decode`, one token a call against the mutable collection "cache", made by a
    first call on tokens of the full length: T5X's interface for its samplers.
    """
    del decoder_positions, max_decode_length  # The mask and the cache imply them.
    if decode and self.has_variable("cache", "cache_index"):
      return self._decode_one(encoded, encoder_input_tokens, decoder_input_tokens)
    if decode:
      self._make_cache(encoded, encoder_input_tokens, decoder_input_tokens.shape[1])
    length = decoder_input_tokens.shape[1]
    positions = jnp.arange(length)
    is_target = decoder_target_tokens > 0
    mask = jnp.tri(length, dtype=bool) & is_target[:, :, None] & is_target[:, None, :]
    mask = mask & _same_segment(decoder_segment_ids, decoder_segment_ids)
    cross_mask = is_target[:, :, None] & (encoder_input_tokens > 0)[:, None, :]
    cross_mask = cross_mask & _same_segment(decoder_segment_ids, encoder_segment_ids)
    features, _ = self.decoder(
      self.token_embedder(decoder_input_tokens),
      [lambda new: new] * self.config.num_decoder_layers,
      self.decoder.bias(positions, positions, mask),
      self.decoder.cross_key_values(encoded),
      cross_mask,
      deterministic=not enable_dropout,
    )
    return self.logits(features)

  def __call__(
    self,
    encoder_input_tokens,
    decoder_input_tokens,
    decoder_target_tokens,
    encoder_segment_ids=None,
    decoder_segment_ids=None,
    encoder_positions=None,
    decoder_positions=None,
    *,
    enable_dropout=True,
    decode=False,
  ):
    """Returns the logits [B, L, V] of targets given inputs, for training and scoring.

    Segment ids keep packed examples apart; positions are implied, as in T5X's T5.
    """
    del encoder_positions
    encoded = self.encode(encoder_input_tokens, encoder_segment_ids, enable_dropout)
    return self.decode(
      encoded,
      encoder_input_tokens,
      decoder_input_tokens,
      decoder_target_tokens,
      encoder_segment_ids,
      decoder_segment_ids,
      decoder_positions,
      enable_dropout,
      decode,
    )

  def _make_cache(self, encoded, encoder_input_tokens, num_slots):
    cache = self.start(encoded, encoder_input_tokens, num_slots)
    self._put_cache(cache, jnp.zeros((), jnp.int32))

  def _decode_one(self, encoded, encoder_input_tokens, tokens):
    index = self.get_variable("cache", "cache_index")
    keys, values = (
      self.get_variable("cache", "keys"),
      self.get_variable("cache", "values"),
    )
    layers = range(self.config.num_decoder_layers)
    cross = self.decoder.cross_key_values(encoded)
    cache = DecoderCache(
      index=jnp.broadcast_to(index, tokens.shape[:1]),
      keys=tuple(keys[f"layers_{i}"] for i in layers),
      values=tuple(values[f"layers_{i}"] for i in layers),
      cross_keys=tuple(key for key, _ in cross),
      cross_values=tuple(value for _, value in cross),
      encoder_mask=encoder_input_tokens > 0,
    )
    logits, _, cache = self.extend(cache, tokens)
    self._put_cache(cache, index + 1)
    return logits

  def _put_cache(self, cache, index):
    # T5X leaves the leaf called cache_index alone when it expands a batch to beams.
    self.put_variable("cache", "cache_index", index)
    for name, arrays in (("keys", cache.keys), ("values", cache.values)):
      by_layer = {f"layers_{i}": array for i, array in enumerate(arrays)}
      self.put_variable("cache", name, by_layer)


def _same_segment(query_ids, key_ids) -> Bool[Array, "B Q S"] | bool:
  if query_ids is None or key_ids is None:
    return True
  return query_ids[:, :, None] == key_ids[:, None, :]
