"""Multi-head attention over keys and values that the caller holds.

Self-attention in training, block scoring against a cache, and cross-attention differ
only in where the keys and values come from, so projection and attention are apart.

Shapes: B batch, Q queries, S keys, H heads, K head width, D width. Packed blocks are
[P, D] in place of [B, Q, D] (`packing`).
"""

import sys

import flax.linen as nn
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from specdec_t5x.network import products
from specdec_t5x.network.config import NetworkConfig
from specdec_t5x.network.layers import Dense, project
from specdec_t5x.network.packing import Packing, pack, unpack
from specdec_t5x.network.products import MASKED

KeyValues = tuple[Float[Array, "B H S K"], Float[Array, "B H S K"]]


class MultiHeadAttention(nn.Module):
  """T5's attention: no 1/sqrt(K) scaling (it is in the query's initialiser)."""

  config: NetworkConfig

  def setup(self):
    cfg = self.config
    width, normal = cfg.num_heads * cfg.head_dim, nn.initializers.variance_scaling
    init = normal(1.0, "fan_in", "normal")
    scaled_init = normal(1.0 / cfg.head_dim, "fan_in", "normal")
    into, out_of = cfg.axes("embed", "joined_kv"), cfg.axes("joined_kv", "embed")
    dense = lambda *args: Dense(*args, cfg.dtype, cfg.products)
    self.query = dense(width, into, scaled_init)
    self.key = dense(width, into, init)
    self.value = dense(width, into, init)
    self.out = dense(cfg.emb_dim, out_of, init)
    self.dropout = nn.Dropout(rate=cfg.dropout_rate, broadcast_dims=(-2,))

  def key_values(self, x: Float[Array, "B S D"]) -> KeyValues:
    """Projects `x` to this layer's keys and values."""
    return tuple(map(self._by_head, project(x, self.key, self.value)))

  def query_key_values(
    self, x: Float[Array, "*block D"], packing: Packing | None = None
  ) -> tuple[Float[Array, "B S H K"], KeyValues]:
    """Projects `x` to this layer's queries, keys and values."""
    projected = project(x, self.query, self.key, self.value)
    query, *key_values = (unpack(packing, y) for y in projected)
    return self._split(query), tuple(map(self._by_head, key_values))

  def queries(
    self, x: Float[Array, "*block D"], packing: Packing | None = None
  ) -> Float[Array, "B Q H K"]:
    """Projects `x` to this layer's queries."""
    return self._split(unpack(packing, self.query(x)))

  def __call__(
    self,
    query: Float[Array, "B Q H K"],
    key_values: KeyValues,
    bias: Float[Array, "#B #H #Q S"],
    deterministic: bool = True,
    packing: Packing | None = None,
  ) -> Float[Array, "*block D"]:
    """Attends from `query` to `key_values`; `bias` holds positions and masks."""
    cfg, (key, value) = self.config, key_values
    if cfg.float32_attention_logits:
      query, key = query.astype(jnp.float32), key.astype(jnp.float32)
    if deterministic and cfg.dtype == "float32":
      # Of a packed block few queries count.
      few = packing is not None and packing.rows.size <= cfg.most_rows
      most = sys.maxsize if few else cfg.most_rows
      mixed = products.attend(cfg.products, query, key, value, bias, most)
    else:
      drop = lambda weights: self.dropout(weights, deterministic=deterministic)
      mixed = products.xla_attend(query, key, value, bias, cfg.dtype, drop)
    return self.out(pack(packing, mixed.reshape(*query.shape[:2], -1)))

  def _split(self, x: Float[Array, "B S HK"]) -> Float[Array, "B S H K"]:
    return x.reshape(*x.shape[:2], self.config.num_heads, self.config.head_dim)

  def _by_head(self, x: Float[Array, "B S HK"]) -> Float[Array, "B H S K"]:
    return self._split(x).swapaxes(1, 2)


def self_biases(
  stack: nn.Module,
  query_positions: Int[Array, "... Q"],
  key_positions: Int[Array, "... S"],
  mask: Bool[Array, "B Q S"],
) -> list[Float[Array, "#B #H Q S"]]:
  """Returns the self-attention bias of each of a stack's layers: positions and mask."""
  masked = mask_bias(mask[:, None], stack.config.dtype)
  if stack.config.relpos_per_layer:
    of_layers = [layer.relpos_bias for layer in stack.layers]
    return [bias(query_positions, key_positions) + masked for bias in of_layers]
  relative = stack.relpos_bias(query_positions, key_positions)
  return [relative + masked] * len(stack.layers)


def mask_bias(mask: Bool[Array, "*shape"], dtype: str) -> Float[Array, "*shape"]:
  """Returns 0 where `mask` lets attention through and MASKED where it does not."""
  return jnp.where(mask, 0.0, MASKED).astype(dtype)
