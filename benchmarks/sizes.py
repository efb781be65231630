"""The published sizes of T5 1.1, and random parameters for them.

Random parameters are for measuring time and memory, which don't depend on the values.
"""

import jax
import jax.numpy as jnp

from specdec_t5x.network.config import T5Config
from specdec_t5x.network.functional import blank_variables
from specdec_t5x.network.transformer import Transformer

VOCAB_SIZE = 32_128  # Rows beyond the 32,100 pieces are padding.
# emb_dim, num_heads, layers of each stack, head_dim, mlp_dim. Source: T5X,
# examples/t5/t5_1_1/*.gin. "tiny" is not in T5X: one layer, for a draft of almost no
# cost.
_SHAPES = {
  "tiny": (64, 2, 1, 32, 128),
  "small": (512, 6, 8, 64, 1024),
  "base": (768, 12, 12, 64, 2048),
  "large": (1024, 16, 24, 64, 2816),
  "xl": (2048, 32, 24, 64, 5120),
  "xxl": (4096, 64, 24, 64, 10240),
}
SIZES = tuple(_SHAPES)


def t5_1_1(size: str, dtype: str = "float32") -> T5Config:
  """Returns the configuration of T5 1.1 in one of `SIZES`, else a ValueError."""
  if size not in _SHAPES:
    raise ValueError(f"Unknown size {size!r}; expected one of {SIZES}.")
  emb_dim, num_heads, num_layers, head_dim, mlp_dim = _SHAPES[size]
  return T5Config(
    vocab_size=VOCAB_SIZE,
    dtype=dtype,
    emb_dim=emb_dim,
    num_heads=num_heads,
    num_encoder_layers=num_layers,
    num_decoder_layers=num_layers,
    head_dim=head_dim,
    mlp_dim=mlp_dim,
    mlp_activations=("gelu", "linear"),
  )


def random_params(module: Transformer, seed: int):
  """Returns random parameters in the network's dtype, made on the default device.

  Kernels are uniform with variance 1 / inputs, so activations keep the same scale. The
  variance of a query's kernel is smaller by the factor 1 / head_dim, as in T5. Without
  the factor, attention is so sharp that rounding errors grow from layer to layer until
  outputs differ. (The network's initialisers take a minute for T5 base on two cores.)
  """
  shapes = jax.eval_shape(lambda: blank_variables(module))["params"]
  leaves, tree = jax.tree_util.tree_flatten_with_path(shapes)
  keys = jax.random.split(jax.random.key(seed, impl="rbg"), len(leaves))
  dtype = jnp.dtype(module.config.dtype)
  arrays = []
  for key, (path, leaf) in zip(keys, leaves, strict=True):
    if len(leaf.shape) == 1:
      arrays.append(jnp.ones(leaf.shape, dtype))
      continue
    is_query = "query" in jax.tree_util.keystr(path)
    head_dim = module.config.head_dim if is_query else 1
    bound = (3 / leaf.shape[0] / head_dim) ** 0.5
    arrays.append(jax.random.uniform(key, leaf.shape, dtype, -bound, bound))
  return jax.tree.unflatten(tree, arrays)
