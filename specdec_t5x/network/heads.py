"""Heads: networks that draft from the target's features.

h is the target's feature of the last token that the target has read. The target's
distribution of the next token is a projection of h. A head computes a feature in place
of h, and the target's projection turns the head's feature into logits. So heads have no
separate vocabulary, and a target with heads needs no second encoder.

Shapes: D width of the features, V vocabulary.
"""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import ClassVar

import flax.linen as nn
import jax.numpy as jnp
from jaxtyping import Array, Float

from specdec_t5x.core.knobs import is_whole
from specdec_t5x.lazy import Lazy
from specdec_t5x.network import hot
from specdec_t5x.network.config import NetworkConfig, T5Config
from specdec_t5x.network.layers import Dense

# Heads are small, so each device holds all parameters.
REPLICATED = (None, None)
# Tokens that EAGLE drafts by default. EAGLE's parameters do not determine the number of
# steps that training unrolled.
_EAGLE_COUNT = 5
# Fields that a layer of 'parallel' or 'eagle' has in common with the target.
_SIZES = ("emb_dim", "num_heads", "head_dim", "mlp_dim", "mlp_activations")
# Kinds that consist of one decoder layer. Other kinds consist of feed-forward layers.
LAYERS = ("parallel", "eagle")

KINDS = Lazy(
  {
    "parallel": "specdec_t5x.network.parallel:ParallelDrafter",
    "eagle": "specdec_t5x.network.eagle:EagleDrafter",
    "blockwise": "specdec_t5x.network.heads:Blockwise",
    "medusa": "specdec_t5x.network.heads:Medusa",
  }
)


@dataclasses.dataclass(frozen=True)
class HeadsConfig:
  """The shape of heads of any kind."""

  kind: str  # One of `KINDS`.
  # The most tokens of a draft: heads, or positions of 'parallel', or steps that the
  # training of 'eagle' unrolls.
  count: int
  emb_dim: int  # Feature width of the target (D).
  layers: int = 1  # Residual blocks of a head of 'medusa'.
  hidden_dim: int = 128  # Hidden width of a head of 'blockwise'.
  # Attention heads of the target and of the layer of 'parallel' or 'eagle'. The
  # fields up to `cross_attention` are for the same two kinds.
  num_heads: int = 1
  head_dim: int = 1  # Width of an attention head of the target and of the layer.
  mlp_dim: int = 1  # Width of the layer's feed-forward block.
  mlp_activations: Sequence[str] = ("gelu", "linear")  # As in `NetworkConfig`.
  cross_attention: bool = True  # Whether the layer attends to the target's input.
  dtype: str = "float32"  # Dtype of the activations.
  products: str = "auto"  # As in `NetworkConfig`.
  vocab_size: int = 0  # Vocabulary size of the target, used with hot tokens.
  hot: int = 0  # Number of tokens that trimmed heads can draft (`hot`); 0 is all.

  def __post_init__(self):
    # gin passes a list, which would make the configuration unhashable.
    object.__setattr__(self, "mlp_activations", tuple(self.mlp_activations))
    if self.kind not in KINDS:
      raise ValueError(
        f"The kind of heads must be one of {sorted(KINDS)}, got {self.kind!r}. Correct "
        "HEADS."
      )
    _ = self.layer  # Checks the fields that a network also has.
    for name in ("count", "layers", "hidden_dim"):
      # A layer that drafts one position only is a copy of the target's head.
      least = 2 if name == "count" and self.kind in LAYERS else 1
      if not is_whole(value := getattr(self, name), least):
        raise ValueError(
          f"HeadsConfig.{name} must be a whole number of at least {least}, got "
          f"{value!r}."
        )

  @classmethod
  def of(
    cls, target: NetworkConfig, count: int, kind: str = "parallel", **knobs
  ) -> "HeadsConfig":
    """Returns the configuration of heads for a target.

    Raises:
      ValueError: if the heads are a T5's layer and the target is a T5Gemma.
    """
    if kind not in LAYERS:
      return cls(kind, count, target.emb_dim, **knobs)
    if target.is_gemma:
      raise ValueError(
        "A parallel drafter needs a T5 as target, got a T5Gemma. Draft with heads of "
        "another kind, a draft model, or the target itself."
      )
    sizes = {name: getattr(target, name) for name in _SIZES}
    has_input = isinstance(target, T5Config)
    return cls(kind, count, **sizes, cross_attention=has_input, **knobs)

  def attends_as(self, target: NetworkConfig) -> bool:
    """Returns whether the layer's keys and values have the target's shapes."""
    expected = HeadsConfig.of(target, self.count, self.kind)
    names = ("num_heads", "head_dim", "cross_attention")
    return all(getattr(self, name) == getattr(expected, name) for name in names)

  @property
  def layer(self) -> NetworkConfig:
    """The configuration of the decoder layer, which is replicated on all devices."""
    sizes = {x: getattr(self, x) for x in (*_SIZES, "dtype", "products")}
    # The layer has no embedding.
    return NetworkConfig(vocab_size=1, dropout_rate=0.0, sharding="replicated", **sizes)


class FeatureDrafter(nn.Module):
  """The base class of all heads; `features` gives the features of a kind of heads."""

  config: HeadsConfig  # Shape of the heads.
  # Number of depths of the target with features that the heads read.
  taps: ClassVar[int] = 1

  @nn.compact
  def logits(self, features: Float[Array, "*B D"]) -> Float[Array, "*B V"]:
    """Returns the logits of drafted features, for heads trimmed to hot tokens."""
    cfg = self.config
    projection = dense(cfg, cfg.hot, nn.initializers.zeros, name=hot.KERNEL)
    logits = projection(features).astype(jnp.float32)
    return hot.spread(logits, hot.places(self, cfg.vocab_size))

  def __call__(self, *args, **kwargs):
    """Creates the parameters; T5X's inputs do not affect the parameters."""
    del args, kwargs
    feature = jnp.zeros((1, self.config.emb_dim))
    if self.config.hot:
      self.logits(feature)
    return self.features(feature)


def are_heads(shapes: Mapping[str, tuple[int, ...]]) -> bool:
  """Returns whether parameters of these shapes, by path, are parameters of heads."""
  is_known = "fuse/kernel" in shapes or "medusa_0/layers_0/kernel" in shapes
  return is_known or {"wi/kernel", "wo/kernel"} <= shapes.keys()


def config_from_shapes(
  shapes: Mapping[str, tuple[int, ...]], dtype: str = "float32"
) -> HeadsConfig:
  """Returns the configuration of heads with parameters of these shapes, by path."""
  (vocab_size,) = shapes.get(hot.PLACES, (0,))
  knobs = {"vocab_size": vocab_size, "hot": hot.size(shapes), "dtype": dtype}
  if "fuse/kernel" in shapes:
    emb_dim, joined = shapes["layer/self_attention/query/kernel"]
    num_heads = shapes["relpos_bias/rel_embedding"][0]
    is_gated = "layer/mlp/wi_0/kernel" in shapes
    return HeadsConfig(
      kind="eagle" if "depths/kernel" in shapes else "parallel",
      count=shapes["masks"][0] + 1 if "masks" in shapes else _EAGLE_COUNT,
      emb_dim=emb_dim,
      num_heads=num_heads,
      head_dim=joined // num_heads,
      mlp_dim=shapes["layer/mlp/wo/kernel"][0],
      mlp_activations=("gelu", "linear") if is_gated else ("relu",),
      cross_attention="layer/encoder_decoder_attention/query/kernel" in shapes,
      **knobs,
    )
  if "wi/kernel" in shapes:
    emb_dim, hidden = shapes["wi/kernel"]
    count = shapes["wo/kernel"][1] // emb_dim
    return HeadsConfig("blockwise", count, emb_dim, hidden_dim=hidden // count, **knobs)
  names = [name.split("/") for name in shapes if name.startswith("medusa_")]
  blocks = {(head, layer) for head, layer, _ in names}
  count = len({head for head, _ in blocks})
  emb_dim = shapes["medusa_0/layers_0/kernel"][1]
  return HeadsConfig("medusa", count, emb_dim, len(blocks) // count, **knobs)


def dense(
  config: HeadsConfig, features: int, init: Callable = Dense.kernel_init, name=None
) -> Dense:
  """Returns a linear map of heads with `features` outputs."""
  return Dense(features, REPLICATED, init, config.dtype, config.products, name=name)


class _Residual(nn.Module):
  """h + silu(W h) for each layer; W is initialized to 0.

  A head therefore starts as the target's distribution of the next token. The blocks in
  the paper have biases; T5 has no biases.
  """

  config: HeadsConfig

  @nn.compact
  def __call__(self, h):
    cfg = self.config
    for i in range(cfg.layers):
      layer = dense(cfg, cfg.emb_dim, nn.initializers.zeros, f"layers_{i}")
      h = h + nn.silu(layer(h))
    return h


class Medusa(FeatureDrafter):
  """Heads that are residual blocks of h: f_i = h + silu(W_i h)."""

  def setup(self):
    # Separate modules, as a single module listed n times would share its weights.
    self.medusa = [_Residual(self.config) for _ in range(self.config.count)]

  def features(self, h: Float[Array, "*B D"]) -> Float[Array, "*B H D"]:
    """Returns the feature of every head for the target's feature."""
    return jnp.stack([head(h) for head in self.medusa], axis=-2)


class Blockwise(FeatureDrafter):
  """A single feed-forward layer for all heads: f_i = h + (W_o relu(W_i h))_i.

  Stern et al. also send the next token's feature through the layer. Here the next
  token's feature is h unchanged, so that the output stays the target's.
  """

  def setup(self):
    cfg = self.config
    self.wi = dense(cfg, cfg.count * cfg.hidden_dim)
    # The initial weights are small, not 0. With zeros before and after the relu no
    # weight would ever learn.
    small = nn.initializers.variance_scaling(1e-4, "fan_in", "truncated_normal")
    self.wo = dense(cfg, cfg.count * cfg.emb_dim, small)

  def features(self, h: Float[Array, "*B D"]) -> Float[Array, "*B H D"]:
    """Returns the feature of every head for the target's feature."""
    change = self.wo(nn.relu(self.wi(h))).reshape(*h.shape[:-1], -1, h.shape[-1])
    return h[..., None, :] + change
