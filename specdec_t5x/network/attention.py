"""Multi-head attention over keys and values that the caller holds.

Self-attention in training, block scoring against a cache, and cross-attention differ
only in where the keys and values come from, so projection and attention are apart.

Shapes: B batch, Q queries, S keys, H heads, K head width, D width.
"""

import flax.linen as nn
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from specdec_t5x.network.config import NetworkConfig
from specdec_t5x.network.layers import Dense

# T5X's value: large enough that masked weights are exactly zero after the softmax.
MASKED = -1e10

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
    self.query = Dense(width, into, cfg.dtype, scaled_init)
    self.key = Dense(width, into, cfg.dtype, init)
    self.value = Dense(width, into, cfg.dtype, init)
    self.out = Dense(cfg.emb_dim, out_of, cfg.dtype, init)
    self.dropout = nn.Dropout(rate=cfg.dropout_rate, broadcast_dims=(-2,))

  def key_values(self, x: Float[Array, "B S D"]) -> KeyValues:
    """Projects `x` to this layer's keys and values."""
    return self._split_heads(self.key(x)), self._split_heads(self.value(x))

  def __call__(
    self,
    x: Float[Array, "B Q D"],
    key_values: KeyValues,
    bias: Float[Array, "#B #H #Q S"],
    deterministic: bool = True,
  ) -> Float[Array, "B Q D"]:
    """Attends from `x` to `key_values`; `bias` holds positions and masks."""
    query, (key, value) = self._split_heads(self.query(x)), key_values
    if self.config.float32_attention_logits:
      query, key = query.astype(jnp.float32), key.astype(jnp.float32)
    scores = jnp.einsum("bhqk,bhsk->bhqs", query, key) + bias.astype(query.dtype)
    weights = jax.nn.softmax(scores).astype(self.config.dtype)
    weights = self.dropout(weights, deterministic=deterministic)
    mixed = jnp.einsum("bhqs,bhsk->bqhk", weights, value)
    return self.out(mixed.reshape(*x.shape[:2], -1))

  def _split_heads(self, x: Float[Array, "B S HK"]) -> Float[Array, "B H S K"]:
    cfg = self.config
    return x.reshape(*x.shape[:2], cfg.num_heads, cfg.head_dim).swapaxes(1, 2)


def mask_bias(mask: Bool[Array, "*shape"], dtype: str) -> Float[Array, "*shape"]:
  """Returns 0 where `mask` lets attention through and MASKED where it does not."""
  return jnp.where(mask, 0.0, MASKED).astype(dtype)
