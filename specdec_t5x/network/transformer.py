"""The T5 encoder-decoder in Flax linen, with T5X's parameter names and logical axes.

This project decodes with `start` and `extend`, which score any number of tokens against
a cache with one index per row (see `decoder`). T5X's samplers decode with T5X's
interface, `decode(..., decode=True)`.

Shapes: B batch, L decoder length, E encoder length, D width, V vocabulary.
"""

import flax.linen as nn
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from specdec_t5x.network import tracing
from specdec_t5x.network.attention import MultiHeadAttention, self_biases
from specdec_t5x.network.cache import DecoderCache
from specdec_t5x.network.config import Reach, T5Config
from specdec_t5x.network.decoder import CachedNetwork, Decoder, same_segment
from specdec_t5x.network.inputs import input_mask, without_padding
from specdec_t5x.network.layers import (
  Embed,
  LayerNorm,
  MlpBlock,
  RelativePositionBias,
  dropout,
  post_norm,
)


class EncoderLayer(nn.Module):
  """Self-attention and feed-forward, each with pre-norm and residual."""

  config: T5Config
  reach: Reach | None = None

  def setup(self):
    cfg = self.config
    self.pre_attention_layer_norm = LayerNorm(cfg)
    self.attention = MultiHeadAttention(cfg, self.reach)
    self.post_attention_layer_norm = post_norm(cfg)
    self.pre_mlp_layer_norm = LayerNorm(cfg)
    self.mlp = MlpBlock(cfg)
    self.post_mlp_layer_norm = post_norm(cfg)
    if cfg.relpos_per_layer:
      self.relpos_bias = RelativePositionBias(cfg, bidirectional=True)
    self.dropout = dropout(cfg)

  def __call__(self, x, bias, deterministic=True):
    y = self.pre_attention_layer_norm(x)
    projected = self.attention.query_key_values(y, jnp.arange(x.shape[1]))
    y = self.attention(*projected, bias, deterministic)
    y = self.post_attention_layer_norm(y)
    x = x + self.dropout(y, deterministic=deterministic)
    y = self.mlp(self.pre_mlp_layer_norm(x), deterministic)
    y = self.post_mlp_layer_norm(y)
    return x + self.dropout(y, deterministic=deterministic)


class Encoder(nn.Module):
  """The encoder stack over embedded tokens."""

  config: T5Config

  def setup(self):
    cfg = self.config
    reaches = cfg.reaches(cfg.num_encoder_layers, is_encoder=True)
    if not cfg.relpos_per_layer and not cfg.is_gemma:
      self.relpos_bias = RelativePositionBias(cfg, bidirectional=True)
    self.layers = [EncoderLayer(cfg, reach) for reach in reaches]
    self.encoder_norm = LayerNorm(cfg)
    self.input_dropout = dropout(cfg)
    self.output_dropout = nn.Dropout(cfg.dropout_rate)

  def __call__(self, x, mask, deterministic):
    positions = jnp.arange(x.shape[1])
    biases = self_biases(self, positions, positions, mask)
    x = self.input_dropout(x, deterministic=deterministic)
    for layer, bias in zip(self.layers, biases, strict=True):
      if deterministic:
        x = tracing.call(layer, "__call__", x, bias)
      else:
        x = layer(x, bias, deterministic)
    return self.output_dropout(self.encoder_norm(x), deterministic=deterministic)


class Transformer(CachedNetwork):
  """A T5, or a T5Gemma if the configuration is a `gemma.GemmaConfig`.

  Parameters of a T5 interchange with T5X's `examples/t5` network.
  """

  config: T5Config

  def setup(self):
    self.token_embedder = Embed(self.config)
    if self.config.num_encoder_layers:
      self.encoder = Encoder(self.config.encoder_side)
    if self.config.has_encoder_table:
      self.encoder_embedder = Embed(self.config.encoder_side)
    self.decoder = Decoder(self.config)

  # ---- Decoding with a cache that has one index per row. ----

  def start(
    self,
    encoded: Float[Array, "B E D"],
    encoder_input_tokens: Int[Array, "B E"],
    num_slots: int,
  ) -> DecoderCache:
    """Returns an empty cache of `num_slots` tokens per row for these inputs."""
    cross = self.decoder.cross_key_values(encoded)
    return self.empty_cache(encoded.shape[0], num_slots).replace(
      cross_keys=tuple(self.by_heads(key) for key, _ in cross),
      cross_values=tuple(self.by_heads(value) for _, value in cross),
      encoder_mask=input_mask(encoder_input_tokens),
    )

  # ---- T5X's network interface. ----

  def encode(self, encoder_input_tokens, encoder_segment_ids=None, enable_dropout=True):
    """Returns the encoded input [B, E, D]."""
    if self.is_initializing() and not self.config.num_encoder_layers:
      width = self.config.encoder_side.emb_dim
      return jnp.zeros((*encoder_input_tokens.shape, width))
    check_encoder(self.config)
    is_token = input_mask(encoder_input_tokens)
    mask = is_token[:, :, None] & is_token[:, None, :]
    mask = mask & same_segment(encoder_segment_ids, encoder_segment_ids)
    has_table = self.config.has_encoder_table
    embedder = self.encoder_embedder if has_table else self.token_embedder
    x = embedder(without_padding(encoder_input_tokens))
    return self.encoder(x, mask, deterministic=not enable_dropout)

  def decode(
    self,
    encoded,
    encoder_input_tokens,
    decoder_input_tokens,
    decoder_target_tokens,
    encoder_segment_ids=None,
    decoder_segment_ids=None,
    *,
    decoder_positions=None,
    enable_dropout=True,
    decode=False,
    max_decode_length=None,
  ):
    """Returns the logits [B, L, V] of the decoder under teacher forcing.

    T5X's samplers use `decode` and the mutable collection "cache". With `decode`, a
    first call on tokens of the full length makes the collection. Each further call
    scores one token per row against the collection.
    """
    del decoder_positions, max_decode_length  # The mask and the cache imply them.
    if decode:
      num_slots = decoder_input_tokens.shape[1]
      cache = self.start(encoded, encoder_input_tokens, num_slots)
      if self.has_variable("cache", "cache_index"):
        return self.extend_collection(cache, decoder_input_tokens)
      self.put_collection(cache, jnp.zeros((), jnp.int32))
    features = self.features(
      encoder_input_tokens,
      decoder_input_tokens,
      decoder_target_tokens,
      encoder_segment_ids,
      decoder_segment_ids,
      enable_dropout=enable_dropout,
      encoded=encoded,
    )
    return self.logits(features)

  def features(
    self,
    encoder_input_tokens,
    decoder_input_tokens,
    decoder_target_tokens,
    encoder_segment_ids=None,
    decoder_segment_ids=None,
    *,
    enable_dropout=True,
    encoded=None,
    taps=1,
  ):
    """Returns the features [B, L, D] from which the logits of targets are computed.

    `encoded` is the encoded input, if known. `taps` is as in `extend`.
    """
    if encoded is None:
      encoded = self.encode(encoder_input_tokens, encoder_segment_ids, enable_dropout)
    is_target = input_mask(decoder_target_tokens)
    cross_mask = is_target[:, :, None] & input_mask(encoder_input_tokens)[:, None]
    return super().features(
      decoder_input_tokens,
      decoder_target_tokens,
      decoder_segment_ids,
      cross=self.decoder.cross_key_values(encoded),
      cross_mask=cross_mask & same_segment(decoder_segment_ids, encoder_segment_ids),
      enable_dropout=enable_dropout,
      taps=taps,
    )

  def last_cross(self, encoder_input_tokens, encoder_segment_ids=None):
    """Returns the last layer's keys and values of the input."""
    encoded = self.encode(encoder_input_tokens, encoder_segment_ids, False)
    return self.decoder.cross_key_values(encoded)[-1]

  def __call__(
    self,
    encoder_input_tokens,
    decoder_input_tokens,
    decoder_target_tokens,
    encoder_segment_ids=None,
    decoder_segment_ids=None,
    *,
    encoder_positions=None,
    enable_dropout=True,
    encoded=None,
    **settings,
  ):
    """Returns the logits [B, L, V] of targets given inputs, for training and scoring.

    Segment ids separate packed examples. Positions are implied, as in T5X's T5.
    `encoded` is the encoded input, if known. `settings` are as in `decode`.
    """
    del encoder_positions
    if encoded is None:
      encoded = self.encode(encoder_input_tokens, encoder_segment_ids, enable_dropout)
    return self.decode(
      encoded,
      encoder_input_tokens,
      decoder_input_tokens,
      decoder_target_tokens,
      encoder_segment_ids,
      decoder_segment_ids,
      enable_dropout=enable_dropout,
      **settings,
    )


def check_encoder(config: T5Config) -> None:
  """Raises a ValueError if a network has no encoder."""
  if not config.num_encoder_layers:
    raise ValueError(
      "Expected a network with an encoder, got a draft on the target's encoder. A "
      "draft on the target's encoder runs in the target's process. Pass the network as "
      "the target's draft."
    )
