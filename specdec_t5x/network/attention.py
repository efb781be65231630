"""Multi-head attention over keys and values that the caller holds.

Self-attention in training, block scoring against a cache, and cross-attention differ
only in where the keys and values come from, so projection and attention are apart.

Shapes: B batch, Q queries, S keys, H heads, J of keys, K head width, D width.
"""

import flax.linen as nn
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from specdec_t5x.network import products
from specdec_t5x.network.config import NetworkConfig, Reach
from specdec_t5x.network.layers import Dense, LayerNorm, project
from specdec_t5x.network.products import MASKED

KeyValues = tuple[Float[Array, "B J S K"], Float[Array, "B J S K"]]


class MultiHeadAttention(nn.Module):
  """T5's attention: no 1/sqrt(K) scaling (it is in the query's initialiser).

  Or Gemma's: scaled, of fewer keys than queries, and of rotary positions.
  """

  config: NetworkConfig
  reach: Reach | None = None

  def setup(self):
    cfg = self.config
    kv_width = cfg.kv_heads * cfg.head_dim
    width, normal = cfg.num_heads * cfg.head_dim, nn.initializers.variance_scaling
    init = normal(1.0, "fan_in", "normal")
    scaled_init = normal(1.0 / cfg.head_dim, "fan_in", "normal")
    into, out_of = cfg.axes("embed", "joined_kv"), cfg.axes("joined_kv", "embed")
    dense = lambda *args: Dense(*args, cfg.dtype, cfg.products)
    self.query = dense(width, into, scaled_init)
    self.key = dense(kv_width, into, init)
    self.value = dense(kv_width, into, init)
    self.out = dense(cfg.emb_dim, out_of, init)
    if cfg.merged:
      self.query_norm, self.key_norm = LayerNorm(cfg, "kv"), LayerNorm(cfg, "kv")
    self.dropout = nn.Dropout(rate=cfg.dropout_rate, broadcast_dims=(-2,))

  def key_values(self, x: Float[Array, "B S D"]) -> KeyValues:
    """Projects `x` to this layer's keys and values."""
    key, value = map(self._split, project(x, self.key, self.value))
    return self._normed_key(key).swapaxes(1, 2), value.swapaxes(1, 2)

  def query_key_values(
    self,
    x: Float[Array, "B S D"],
    positions: Int[Array, "... S"] | None = None,
  ) -> tuple[Float[Array, "B S H K"], KeyValues]:
    """Projects `x` to this layer's queries, keys and values, at rotary positions."""
    projected = project(x, self.query, self.key, self.value)
    query, key, value = map(self._split, projected)
    query, key = self._scaled_query(query), self._normed_key(key)
    if self.reach is not None:
      query, key = (rotated(y, positions, self.reach) for y in (query, key))
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
    cfg, (key, value), size = self.config, key_values, query.shape[1]
    # Queries that share keys stand beside each other, as if there were more tokens.
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
      drop = lambda weights: self.dropout(weights, deterministic=deterministic)
      how = cfg.dtype, drop, cfg.attention_cap
      mixed = products.xla_attend(query, key, value, bias, *how)
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
  """Returns queries or keys with pairs of numbers turned by their position's angles.

  The number j and the one K/2 after it turn by position / factor theta^(-2j/K). Source:
  RoFormer, arXiv 2104.09864, section 3.4.2.
  """
  half = x.shape[-1] // 2
  waves = reach.theta ** (-jnp.arange(half, dtype=jnp.float32) / half) / reach.factor
  angles = (positions[..., None] * waves)[..., None, :]
  cos, sin = jnp.cos(angles).astype(x.dtype), jnp.sin(angles).astype(x.dtype)
  first, second = x[..., :half], x[..., half:]
  turned = first * cos - second * sin, second * cos + first * sin
  return jnp.concatenate(turned, axis=-1)


def beside(key_values, bias, cross, cross_bias):
  """Returns two sets of keys and values as one, and their biases [B, 1, Q, ..]."""
  shape = jnp.broadcast_shapes(bias.shape[:-1], cross_bias.shape[:-1])
  biases = [jnp.broadcast_to(b, (*shape, b.shape[-1])) for b in (bias, cross_bias)]
  join = lambda own, other: jnp.concatenate([own, other], axis=2)
  joined = tuple(map(join, key_values, cross))
  return joined, jnp.concatenate(biases, axis=-1)


def self_biases(
  stack: nn.Module,
  query_positions: Int[Array, "... Q"],
  key_positions: Int[Array, "... S"],
  mask: Bool[Array, "B Q S"],
) -> list[Float[Array, "#B #H Q S"]]:
  """Returns the self-attention bias of each of a stack's layers: positions and mask."""
  reaches = [layer.reach for layer in stack.layers]
  if reaches and reaches[0] is not None:
    offset = query_positions[..., :, None] - key_positions[..., None, :]
    masks = {None: mask[:, None]}
    for before, behind in {reach.window for reach in reaches} - {None}:
      near = (offset < before) & (-offset < behind)
      masks[before, behind] = (mask & near)[:, None]
    made = {seen: mask_bias(x, stack.config.dtype) for seen, x in masks.items()}
    return [made[reach.window] for reach in reaches]
  masked = mask_bias(mask[:, None], stack.config.dtype)
  if stack.config.relpos_per_layer:
    of_layers = [layer.relpos_bias for layer in stack.layers]
    return [bias(query_positions, key_positions) + masked for bias in of_layers]
  relative = stack.relpos_bias(query_positions, key_positions)
  return [relative + masked] * len(stack.layers)


def mask_bias(mask: Bool[Array, "*shape"], dtype: str) -> Float[Array, "*shape"]:
  """Returns 0 where `mask` lets attention through and MASKED where it does not."""
  return jnp.where(mask, 0.0, MASKED).astype(dtype)
