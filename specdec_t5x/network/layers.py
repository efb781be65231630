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


def parameter(
  module: nn.Module,
  name: str,
  init: Callable,
  shape: tuple[int, ...],
  axes: tuple[str | None, ...],
) -> Float[Array, "..."]:
  """Declares a float32 parameter of a module, and returns it.

  Args:
    module: whose parameter it is.
    name: its name there.
    init: its initialiser.
    shape: its shape.
    axes: logical names of its dimensions.
  """
  if module.has_variable("params", name):
    # Flax traces initialisers again and again, to compare shapes: this one is quick.
    init = nn.initializers.zeros
  return param_with_axes(name, init, shape, jnp.float32, axes=axes, module=module)


class Dense(nn.Module):
  """A linear map without bias.

  Attributes:
    features: output width.
    axes: logical names of the kernel's two dimensions.
    kernel_init: initialiser of the [in, features] kernel.
    dtype: of the product.
    products: whose product, one of `products.PRODUCTS`.
  """

  features: int
  axes: tuple[str | None, str | None]
  kernel_init: Callable = nn.initializers.variance_scaling(
    1.0, "fan_in", "truncated_normal"
  )
  dtype: str = "float32"
  products: str = "auto"

  def __call__(self, x: Float[Array, "*batch I"]) -> Float[Array, "*batch O"]:
    return project(x, self)[0]

  @nn.compact
  def kernel(self, inputs: int) -> Float[Array, "I O"] | rounded.Matrix:
    """Returns the matrix for rows of `inputs` numbers, perhaps a rounded one."""
    if isinstance(known := self.get_variable("params", "kernel"), Mapping):
      return known
    shape = (inputs, self.features)
    kernel = parameter(self, "kernel", self.kernel_init, shape, self.axes)
    # Logits are float32 sums; a kernel that is kept in bfloat16 is read as it is.
    return kernel if kernel.dtype == "bfloat16" else jnp.asarray(kernel, self.dtype)


def project(
  x: Float[Array, "*batch I"], *layers: Dense
) -> tuple[Float[Array, "*batch _"], ...]:
  """Applies linear maps of one dtype to the same rows, together where that pays."""
  kernels = [layer.kernel(x.shape[-1]) for layer in layers]
  args = layers[0].products, x.astype(layers[0].dtype), *kernels
  if not isinstance(kernels[0], Mapping):
    return multiply(*args)
  if "bounds" in kernels[0]:
    return (certified.multiply(*args),)
  return rounded.multiply(*args)


class LayerNorm(nn.Module):
  """T5's layer norm, computed in float32: x / sqrt(mean(x^2) + 1e-6) * scale.

  Gemma's multiplies by 1 + scale.
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
  """Returns the norm after a sublayer, which T5 does without."""
  return LayerNorm(config) if config.is_gemma else (lambda y: y)


class MlpBlock(nn.Module):
  """T5's feed-forward block: wo(prod_i activation_i(wi_i(x)))."""

  config: NetworkConfig

  @nn.compact
  def __call__(
    self, x: Float[Array, "*batch D"], deterministic: bool = True
  ) -> Float[Array, "*batch D"]:
    cfg = self.config
    kind = {"dtype": cfg.dtype, "products": cfg.products}
    axes, count = cfg.axes("embed", "mlp"), len(cfg.mlp_activations)
    names = ["wi"] if count == 1 else [f"wi_{i}" for i in range(count)]
    parts = project(x, *(Dense(cfg.mlp_dim, axes, name=n, **kind) for n in names))
    hidden = 1.0
    for part, activation in zip(parts, cfg.mlp_activations, strict=True):
      hidden *= part if activation == "linear" else getattr(nn, activation)(part)
    hidden = dropout(cfg)(hidden, deterministic=deterministic)
    return Dense(cfg.emb_dim, cfg.axes("mlp", "embed"), name="wo", **kind)(hidden)


class Embed(nn.Module):
  """The token embedding, read by lookup.

  T5X multiplies by a one-hot matrix instead, which gives the same numbers at V times
  the work: its reason, partitioned training on TPU, does not hold at inference.
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
      # XLA on CPU makes a float32 table of it, ahead of the loop that looks up tokens:
      # behind a barrier, of the rows alone.
      table, tokens = jax.lax.optimization_barrier((table, tokens))
    rows = jnp.take(table, tokens, axis=0, mode="clip")
    rows = jnp.asarray(rows, self.config.dtype)
    root = jnp.asarray(self.config.emb_dim**0.5, rows.dtype)
    return rows * root if self.config.is_gemma else rows

  def attend(self, x: Float[Array, "*batch D"]) -> Float[Array, "*batch V"]:
    """Returns the tied output projection x E^T / sqrt(D), Gemma's x E^T, in float32."""
    x = x.astype(jnp.float32)
    choice = self.config.products
    made = self.get_variable("params", rounded.LOGITS, {})
    if "bounds" in made:
      logits = certified.multiply(choice, x, made)
    elif made:
      logits = rounded.multiply(choice, x, made)[0]
    else:
      logits = multiply_by_rows(choice, x, self.embedding)
    return logits if self.config.is_gemma else logits / jnp.sqrt(x.shape[-1])


class RelativePositionBias(nn.Module):
  """T5's learned attention bias by bucketed distance, one value a head."""

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
    """Returns the bias that each query position gives to each key position."""
    # Beyond MAX_DISTANCE all distances share a bucket, so this table is complete.
    table = bucket(np.arange(-MAX_DISTANCE, MAX_DISTANCE + 1), self.bidirectional)
    offset = key_positions[..., None, :] - query_positions[..., :, None]
    offset = jnp.clip(offset, -MAX_DISTANCE, MAX_DISTANCE)
    by_offset = jnp.asarray(self.rel_embedding, self.config.dtype).T[table]
    return jnp.moveaxis(by_offset[offset + MAX_DISTANCE], -1, -3)


def bucket(offset: np.ndarray, bidirectional: bool) -> np.ndarray:
  """Returns the bucket of each relative position (key minus query).

  Half of the buckets are exact small distances, the others grow logarithmically up to
  MAX_DISTANCE; a bidirectional bias keeps one half of all buckets for each direction.
  Source: T5 (Raffel et al., 2020), section 2.1.
  """
  count, base = NUM_BUCKETS, np.zeros_like(offset)
  if bidirectional:
    count //= 2
    base = (offset > 0) * count
    distance = np.abs(offset)
  else:
    distance = np.maximum(-offset, 0)
  exact = count // 2
  # float32 and the epsilon reproduce T5's own rounding at the bucket boundaries.
  ratio = distance.astype(np.float32) / exact + np.finfo(np.float32).eps
  scale = (count - exact) / np.log(MAX_DISTANCE / exact)
  large = exact + (np.log(ratio) * scale).astype(np.int32)
  return base + np.where(distance < exact, distance, np.minimum(large, count - 1))


def dropout(config: NetworkConfig) -> nn.Dropout:
  """Returns T5's dropout, whose mask is shared along the length."""
  return nn.Dropout(rate=config.dropout_rate, broadcast_dims=(-2,))
