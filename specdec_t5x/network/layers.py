"""The parts of a T5 block, with T5X's parameter names and logical axes.

Shapes: B batch, L length, D width, H heads, F feed-forward width, V vocabulary.
"""

from collections.abc import Callable, Mapping

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from flax.linen.partitioning import param_with_axes
from jaxtyping import Array, Float, Int

from specdec_t5x.network import certified, rounded
from specdec_t5x.network.config import NetworkConfig
from specdec_t5x.network.products import multiply, multiply_by_rows, normalize

NUM_BUCKETS = 32
MAX_DISTANCE = 128
# The name of a random stream that makes all parameters NaN, because random values take
# half the time of a trace.
BLANK = "blank"


def parameter(
  module: nn.Module,
  name: str,
  init: Callable,
  shape: tuple[int, ...],
  axes: tuple[str | None, ...],
) -> Float[Array, "..."]:
  """Declares and returns a float32 parameter of a module.

  Args:
    module: module of the parameter.
    name: name of the parameter in the module.
    init: initialiser of the parameter.
    shape: shape of the parameter.
    axes: logical names of the parameter's dimensions.
  """
  if module.has_rng(BLANK):
    init = nn.initializers.constant(jnp.nan)  # A use by mistake is noticed.
  elif module.has_variable("params", name):
    # Flax traces the initialiser in each call to compare shapes. Zeros trace fast.
    init = nn.initializers.zeros
  return param_with_axes(name, init, shape, jnp.float32, axes=axes, module=module)


class Dense(nn.Module):
  """A linear map without bias."""

  features: int  # Output width.
  axes: tuple[str | None, str | None]  # Logical names of the kernel's two dimensions.
  # Initialiser of the [in, features] kernel.
  kernel_init: Callable = nn.initializers.variance_scaling(
    1.0, "fan_in", "truncated_normal"
  )
  dtype: str = "float32"  # Dtype of the product.
  products: str = "auto"  # One of `products.PRODUCTS`.

  def __call__(self, x: Float[Array, "*batch I"]) -> Float[Array, "*batch O"]:
    return project(x, self)[0]

  @nn.compact
  def kernel(self, inputs: int) -> Float[Array, "I O"] | rounded.Matrix:
    """Returns the matrix for rows of `inputs` numbers, or a rounded matrix."""
    stored = self.get_variable("params", "kernel")
    if isinstance(stored, Mapping):
      return stored
    shape = (inputs, self.features)
    kernel = parameter(self, "kernel", self.kernel_init, shape, self.axes)
    # Logits are sums in float32. A bfloat16 kernel of logits needs no conversion.
    return kernel if kernel.dtype == "bfloat16" else jnp.asarray(kernel, self.dtype)


def project(
  x: Float[Array, "*batch I"], *layers: Dense
) -> tuple[Float[Array, "*batch _"], ...]:
  """Applies linear maps of one dtype to the same rows, together if faster."""
  kernels = [layer.kernel(x.shape[-1]) for layer in layers]
  choice = layers[0].products
  x = x.astype(layers[0].dtype)
  if not isinstance(kernels[0], Mapping):
    return multiply(choice, x, *kernels)
  if "bounds" in kernels[0]:
    return (certified.multiply(choice, x, *kernels),)
  return rounded.multiply(choice, x, *kernels)


class LayerNorm(nn.Module):
  """T5's layer norm, computed in float32: x / sqrt(mean(x^2) + 1e-6) * scale.

  Gemma's layer norm multiplies by 1 + scale.
  """

  config: NetworkConfig
  axis: str = "embed"

  @nn.compact
  def __call__(self, x: Float[Array, "*batch D"]) -> Float[Array, "*batch D"]:
    cfg = self.config
    start = nn.initializers.zeros if cfg.is_gemma else nn.initializers.ones
    scale = parameter(self, "scale", start, (x.shape[-1],), cfg.axes(self.axis))
    if cfg.is_gemma:
      scale = 1.0 + jnp.asarray(scale, jnp.float32)
      return normalize(cfg.products, x, scale, cfg.most_rows).astype(cfg.dtype)
    scale = jnp.asarray(scale, cfg.dtype)
    return normalize(cfg.products, x, scale, cfg.most_rows)


def post_norm(config: NetworkConfig) -> Callable:
  """Returns the norm after a sublayer: the identity for T5."""
  return LayerNorm(config) if config.is_gemma else (lambda y: y)


class MlpBlock(nn.Module):
  """T5's feed-forward block: wo(prod_i activation_i(wi_i(x)))."""

  config: NetworkConfig

  @nn.compact
  def __call__(
    self, x: Float[Array, "*batch D"], deterministic: bool = True
  ) -> Float[Array, "*batch D"]:
    cfg = self.config
    settings = {"dtype": cfg.dtype, "products": cfg.products}
    axes = cfg.axes("embed", "mlp")
    count = len(cfg.mlp_activations)
    names = ["wi"] if count == 1 else [f"wi_{i}" for i in range(count)]
    layers = [Dense(cfg.mlp_dim, axes, name=name, **settings) for name in names]
    parts = project(x, *layers)
    hidden = 1.0
    for part, activation in zip(parts, cfg.mlp_activations, strict=True):
      hidden *= part if activation == "linear" else getattr(nn, activation)(part)
    hidden = dropout(cfg)(hidden, deterministic=deterministic)
    output = Dense(cfg.emb_dim, cfg.axes("mlp", "embed"), name="wo", **settings)
    return output(hidden)


class Embed(nn.Module):
  """The token embedding, by lookup.

  T5X multiplies by a one-hot matrix, which gives the same numbers at V times the work.
  The reason, partitioned training on TPU, does not apply at inference.
  """

  config: NetworkConfig

  def setup(self):
    self.embedding = parameter(
      self,
      "embedding",
      nn.initializers.normal(stddev=1.0),
      (self.config.vocab_size, self.config.emb_dim),
      self.config.axes("vocab", "embed"),
    )

  def __call__(self, tokens: Int[Array, "*batch"]) -> Float[Array, "*batch D"]:
    table = self.embedding
    if table.dtype.itemsize == 2:
      # Without the barrier, XLA on CPU converts the whole table to float32 before the
      # loop that looks up tokens. With the barrier, XLA converts only the rows.
      table, tokens = jax.lax.optimization_barrier((table, tokens))
    rows = jnp.take(table, tokens, axis=0, mode="clip")
    rows = jnp.asarray(rows, self.config.dtype)
    root = jnp.asarray(self.config.emb_dim**0.5, rows.dtype)
    return rows * root if self.config.is_gemma else rows

  def attend(self, x: Float[Array, "*batch D"]) -> Float[Array, "*batch V"]:
    """Returns the tied projection in float32: x E^T / sqrt(D), for Gemma x E^T."""
    x = x.astype(jnp.float32)
    choice = self.config.products
    rounded_head = self.get_variable("params", rounded.LOGITS, {})
    if "bounds" in rounded_head:
      logits = certified.multiply(choice, x, rounded_head)
    elif rounded_head:
      logits = rounded.multiply(choice, x, rounded_head)[0]
    else:
      logits = multiply_by_rows(choice, x, self.embedding)
    return logits if self.config.is_gemma else logits / jnp.sqrt(x.shape[-1])


class RelativePositionBias(nn.Module):
  """T5's learned attention bias by bucketed distance, one value per head."""

  config: NetworkConfig
  bidirectional: bool

  def setup(self):
    self.rel_embedding = parameter(
      self,
      "rel_embedding",
      nn.initializers.variance_scaling(1.0, "fan_avg", "uniform"),
      (self.config.num_heads, NUM_BUCKETS),
      self.config.axes("heads", "relpos_buckets"),
    )

  def __call__(
    self, query_positions: Int[Array, "*B Q"], key_positions: Int[Array, "*B S"]
  ) -> Float[Array, "*B H Q S"]:
    """Returns the bias of each pair of a query position and a key position."""
    # All distances beyond MAX_DISTANCE share a bucket, so this table is complete.
    table = bucket(np.arange(-MAX_DISTANCE, MAX_DISTANCE + 1), self.bidirectional)
    offset = key_positions[..., None, :] - query_positions[..., :, None]
    offset = jnp.clip(offset, -MAX_DISTANCE, MAX_DISTANCE)
    by_offset = jnp.asarray(self.rel_embedding, self.config.dtype).T[table]
    return jnp.moveaxis(by_offset[offset + MAX_DISTANCE], -1, -3)


def bucket(offset: np.ndarray, bidirectional: bool) -> np.ndarray:
  """Returns the bucket of each relative position (key minus query).

  Half of the buckets hold one small distance each. The sizes of the other buckets grow
  logarithmically up to MAX_DISTANCE. A bidirectional bias uses half of all buckets for
  each direction.

  Source: T5 (Raffel et al., 2020), section 2.1.
  """
  count = NUM_BUCKETS
  base = np.zeros_like(offset)
  if bidirectional:
    count //= 2
    base = (offset > 0) * count
    distance = np.abs(offset)
  else:
    distance = np.maximum(-offset, 0)
  exact = count // 2
  # float32 and the epsilon reproduce T5's rounding at the bucket boundaries.
  ratio = distance.astype(np.float32) / exact + np.finfo(np.float32).eps
  scale = (count - exact) / np.log(MAX_DISTANCE / exact)
  large = exact + (np.log(ratio) * scale).astype(np.int32)
  return base + np.where(distance < exact, distance, np.minimum(large, count - 1))


def dropout(config: NetworkConfig) -> nn.Dropout:
  """Returns T5's dropout, with one mask for all positions of a row."""
  return nn.Dropout(rate=config.dropout_rate, broadcast_dims=(-2,))
