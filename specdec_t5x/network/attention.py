"""Multi-head attention over keys and values that the caller holds.

Projection and attention are separate methods, because self-attention in training,
block scoring against a cache and cross-attention differ only in the source of the keys
and values.

Shapes: B batch, Q queries, S keys, H query heads, J key heads, K head width, D width.
"""

import functools

import flax.linen as nn
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from specdec_t5x.network import products
from specdec_t5x.network.config import NetworkConfig, Reach
from specdec_t5x.network.layers import Dense, LayerNorm, dropout, project
from specdec_t5x.network.products import MASKED

KeyValues = tuple[Float[Array, "B J S K"], Float[Array, "B J S K"]]


class MultiHeadAttention(nn.Module):
  """The attention of T5, or of Gemma.

  T5's attention has no factor 1/sqrt(K); the query's initialiser contains the factor.
  Gemma's attention is scaled, has fewer key heads than query heads, and uses rotary
  positions.
  """

  config: NetworkConfig
  reach: Reach | None = None

  def setup(self):
    cfg = self.config
    width = cfg.num_heads * cfg.head_dim
    kv_width = cfg.kv_heads * cfg.head_dim
    scaling = nn.initializers.variance_scaling
    init = scaling(1.0, "fan_in", "normal")
    scaled_init = scaling(1.0 / cfg.head_dim, "fan_in", "normal")
    input_axes = cfg.axes("embed", "joined_kv")
    output_axes = cfg.axes("joined_kv", "embed")
    self.query = Dense(width, input_axes, scaled_init, cfg.dtype, cfg.products)
    self.key = Dense(kv_width, input_axes, init, cfg.dtype, cfg.products)
    self.value = Dense(kv_width, input_axes, init, cfg.dtype, cfg.products)
    self.out = Dense(cfg.emb_dim, output_axes, init, cfg.dtype, cfg.products)
    if cfg.merged:
      self.query_norm = LayerNorm(cfg, "kv")
      self.key_norm = LayerNorm(cfg, "kv")
    self.dropout = dropout(cfg)

  def key_values(self, x: Float[Array, "B S D"]) -> KeyValues:
    """Projects `x` to this layer's keys and values."""
    key, value = map(self._split, project(x, self.key, self.value))
    return self._normed_key(key).swapaxes(1, 2), value.swapaxes(1, 2)

  def query_key_values(
    self, x: Float[Array, "B S D"], positions: Int[Array, "... S"] | None = None
  ) -> tuple[Float[Array, "B S H K"], KeyValues]:
    """Projects `x` to this layer's queries, keys and values, at rotary positions."""
    projected = project(x, self.query, self.key, self.value)
    query, key, value = map(self._split, projected)
    query = self._scaled_query(query)
    key = self._normed_key(key)
    if self.reach is not None:
      query = rotated(query, positions, self.reach)
      key = rotated(key, positions, self.reach)
    return query, (key.swapaxes(1, 2), value.swapaxes(1, 2))

  def queries(self, x: Float[Array, "B Q D"]) -> Float[Array, "B Q H K"]:
    """Projects `x` to this layer's queries."""
    return self._scaled_query(self._split(self.query(x)))

  def __call__(
    self,
    query: Float[Array, "B Q H K"],
    key_values: KeyValues,
    bias: Float[Array, "#B #H #Q S"],
    deterministic: bool = True,
  ) -> Float[Array, "B Q D"]:
    """Attends from `query` to `key_values`; `bias` holds positions and masks."""
    cfg = self.config
    key, value = key_values
    size = query.shape[1]
    # Queries of the heads that share a key head are adjacent, like further tokens.
    shared = cfg.num_heads // cfg.kv_heads
    if shared > 1:
      query = query.reshape(*query.shape[:2], cfg.kv_heads, shared, -1)
      query = query.swapaxes(2, 3).reshape(len(query), -1, *key.shape[1::2])
      bias = jnp.repeat(bias, shared, axis=2) if bias.shape[2] > 1 else bias
    rows = query.shape[0] * query.shape[1]
    is_native = products.are_native(cfg.products, rows, str(query.dtype), cfg.most_rows)
    if deterministic and is_native and not cfg.attention_cap:
      mixed = products.attend(cfg.products, query, key, value, bias, cfg.most_rows)
    else:
      if cfg.float32_attention_logits:
        query, key = query.astype(jnp.float32), key.astype(jnp.float32)
      mixed = products.xla_attend(
        query,
        key,
        value,
        bias,
        dtype=cfg.dtype,
        drop=functools.partial(self.dropout, deterministic=deterministic),
        cap=cfg.attention_cap,
      )
    if shared > 1:
      mixed = mixed.reshape(len(query), size, shared, *key.shape[1::2]).swapaxes(2, 3)
    return self.out(mixed.reshape(len(query), size, -1))

  def _split(self, x: Float[Array, "B S HK"]) -> Float[Array, "B S H K"]:
    return x.reshape(*x.shape[:2], -1, self.config.head_dim)

  def _scaled_query(self, query: Float[Array, "B Q H K"]) -> Float[Array, "B Q H K"]:
    query = self.query_norm(query) if self.config.merged else query
    return query * self.config.query_scale if self.config.is_gemma else query

  def _normed_key(self, key: Float[Array, "B S H K"]) -> Float[Array, "B S H K"]:
    return self.key_norm(key) if self.config.merged else key


def rotated(
  x: Float[Array, "B S H K"], positions: Int[Array, "... S"], reach: Reach
) -> Float[Array, "B S H K"]:
  """Returns queries or keys with each pair of numbers rotated by an angle.

  The numbers j and j + K/2 form a pair. The angle of pair j is
  position / factor theta^(-2j/K).

  Source: RoFormer, arXiv 2104.09864, section 3.4.2.
  """
  half = x.shape[-1] // 2
  waves = reach.theta ** (-jnp.arange(half, dtype=jnp.float32) / half) / reach.factor
  angles = (positions[..., None] * waves)[..., None, :]
  cos = jnp.cos(angles).astype(x.dtype)
  sin = jnp.sin(angles).astype(x.dtype)
  first, second = x[..., :half], x[..., half:]
  turned_first = first * cos - second * sin
  turned_second = second * cos + first * sin
  return jnp.concatenate([turned_first, turned_second], axis=-1)


def self_biases(
  stack: nn.Module,
  query_positions: Int[Array, "... Q"],
  key_positions: Int[Array, "... S"],
  mask: Bool[Array, "B Q S"],
) -> list[Float[Array, "#B #H Q S"]]:
  """Returns the self-attention bias of each layer of a stack: positions and mask."""
  reaches = [layer.reach for layer in stack.layers]
  if reaches and reaches[0] is not None:
    offset = query_positions[..., :, None] - key_positions[..., None, :]
    masks = {None: mask[:, None]}
    for before, behind in {reach.window for reach in reaches} - {None}:
      near = (offset < before) & (-offset < behind)
      masks[before, behind] = (mask & near)[:, None]
    biases = {window: mask_bias(x, stack.config.dtype) for window, x in masks.items()}
    return [biases[reach.window] for reach in reaches]
  masked = mask_bias(mask[:, None], stack.config.dtype)
  owners = stack.layers if stack.config.relpos_per_layer else [stack]
  biases = [x.relpos_bias(query_positions, key_positions) + masked for x in owners]
  return biases * (len(stack.layers) // len(owners))


def mask_bias(mask: Bool[Array, "*shape"], dtype: str) -> Float[Array, "*shape"]:
  """Returns 0 where `mask` allows attention and `MASKED` elsewhere."""
  return jnp.where(mask, 0.0, MASKED).astype(dtype)
