"""The hyperparameters of a network: T5, or decoder-only."""

import contextlib
import dataclasses
import sys
from collections.abc import Mapping, Sequence
from typing import ClassVar

import jax.numpy as jnp

from specdec_t5x.core.knobs import KnobError, invalid, is_whole
from specdec_t5x.network import hot, products

ACTIVATIONS = ("linear", "relu", "gelu", "silu", "swish", "tanh")
# T5's activations and the attention mask overflow in float16.
DTYPES = ("float32", "bfloat16")
# Bits of a network's rounded weights; 0 keeps the weights as restored.
WEIGHTS = {"float32": 0, "int8": 8}
HEADS = ("auto", "certified", "full")
# A parameter of T5Gemma alone.
GEMMA_NORM = "decoder/layers_0/post_mlp_layer_norm/scale"
# How a network is divided over the devices of the mesh's 'model' axis: the logical axes
# that are not divided. Only relative position biases and caches are divided by heads.
SHARDINGS = {
  "full": (),
  "no_heads": ("heads",),
  "replicated": ("vocab", "embed", "mlp", "heads", "joined_kv"),
}


@dataclasses.dataclass(frozen=True)
class Reach:
  """The window and the rotary positions of a layer."""

  # Exclusive limits of the distance to visible tokens before and behind a token;
  # None makes all tokens visible.
  window: tuple[int, int] | None
  theta: float  # Base of the wavelengths.
  factor: float = 1.0  # Divisor of positions.


# Integer fields that may be 0. All other integer fields are at least 1.
_MAY_BE_0 = ("num_encoder_layers", "hot", "start_token")


@dataclasses.dataclass(frozen=True)
class NetworkConfig:
  """The sizes and settings of the blocks of all networks, under T5X's field names."""

  vocab_size: int  # Rows of the embedding, padding rows included.
  # Dtype of the activations. Parameters keep the restored dtype.
  dtype: str = "float32"
  emb_dim: int = 512  # Width of the residual stream (D).
  num_heads: int = 8  # Attention heads (H).
  head_dim: int = 64  # Width of a head.
  mlp_dim: int = 2048  # Width of the feed-forward layer.
  # One name per input projection. The activated projections are multiplied.
  mlp_activations: Sequence[str] = ("relu",)
  dropout_rate: float = 0.1  # Rate of dropout, if dropout is enabled.
  # Whether the embedding is also the output projection.
  logits_via_embedding: bool = False
  # Whether attention scores are float32 at any `dtype`.
  float32_attention_logits: bool = False
  sharding: str = "full"  # One of `SHARDINGS`: the partitioner's rules that apply.
  # Kernels of products with few rows. 'native' uses our kernels, 'xla' uses XLA.
  # 'auto' uses our kernels if they are available and, on a GPU, faster
  # (`native.cuda.choice`).
  products: str = "auto"
  # One of `WEIGHTS`. 'int8' is the network of rounded weights (`rounded`), which
  # differs from the checkpoint's network.
  weights: str = "float32"
  # One of `HEADS`. 'full' computes all logits of a target exactly. 'certified'
  # computes exactly only logits that may be the largest, and needs a decode that
  # uses only the argmax (`certified`). 'auto' is 'certified' if possible and
  # faster.
  head: str = "auto"
  # Number of tokens in the projection of a trimmed draft (`hot`); 0 is all.
  hot: int = 0

  # Properties of T5. `gemma` overrides them.
  relpos_per_layer: ClassVar[bool] = False
  # Norms by 1 + w, also after sublayers; embeddings times sqrt(D).
  is_gemma: ClassVar[bool] = False
  merged: ClassVar[bool] = False
  num_kv_heads: ClassVar[int] = 0
  query_scale: ClassVar[float] = 1.0
  attention_cap: ClassVar[float] = 0.0
  logits_cap: ClassVar[float] = 0.0
  start_token: ClassVar[int] = 0
  has_encoder_table: ClassVar[bool] = False

  def __post_init__(self):
    kind = type(self).__name__
    # A list would make the configuration, and so every jitted program, unhashable.
    object.__setattr__(self, "mlp_activations", tuple(self.mlp_activations))
    with contextlib.suppress(TypeError):  # Refused below.
      object.__setattr__(self, "dtype", jnp.dtype(self.dtype).name)
    if self.dtype not in DTYPES:
      raise KnobError(
        "{kind}.dtype must be one of {dtypes}, got {dtype!r}. Set {activation_dtype} "
        "to 'bfloat16' for 16 bits: T5's activations overflow float16.",
        kind=kind,
        dtypes=DTYPES,
        dtype=self.dtype,
      )
    unknown = [name for name in self.mlp_activations if name not in ACTIVATIONS]
    if unknown or not self.mlp_activations:
      raise ValueError(
        f"{kind}.mlp_activations must be names among {ACTIVATIONS}, got "
        f"{self.mlp_activations!r}. T5 1.0 has ('relu',), T5 1.1 ('gelu', 'linear')."
      )
    if self.sharding not in SHARDINGS:
      raise ValueError(
        f"{kind}.sharding must be one of {tuple(SHARDINGS)}, got {self.sharding!r}. "
        "Set TARGET_SHARDING and DRAFT_SHARDING."
      )
    if self.weights not in WEIGHTS:
      raise invalid(
        "weights",
        f"one of {tuple(WEIGHTS)}",
        self.weights,
        "'float32' keeps the checkpoint's weights, in {param_dtype}, and 'int8' rounds "
        "the weights.",
      )
    if self.head not in HEADS:
      raise invalid("head", f"one of {HEADS}", self.head)
    products.check(self.products, self.dtype)
    for field in dataclasses.fields(self):
      value = getattr(self, field.name)
      least = int(field.name not in _MAY_BE_0)
      if field.type is int and not is_whole(value, least):
        raise ValueError(
          f"{kind}.{field.name} must be a whole number of at least {least}, got "
          f"{value!r}."
        )

  @property
  def most_rows(self) -> int:
    """The most rows that our kernels normalize and attend, if the kernels are used.

    With rounded weights the number is unlimited. In XLA's kernels the last digits of a
    row depend on the other rows, and rounding the activations turns these differences
    into steps. The same holds for bfloat16.
    """
    is_rounded = WEIGHTS[self.weights] or self.dtype == "bfloat16"
    return sys.maxsize if is_rounded else products.MAX_ROWS

  @property
  def kv_heads(self) -> int:
    """The number of heads of keys and values."""
    return self.num_kv_heads or self.num_heads

  def reaches(self, layers: int, is_encoder: bool) -> tuple[Reach | None, ...]:
    """Returns the reach of each layer of a stack; None for a relative position bias.

    Args:
      layers: number of layers in the stack.
      is_encoder: whether the stack is the encoder. The encoder's windows have two
        sides.
    """
    del is_encoder
    return (None,) * layers

  def axes(self, *names: str) -> tuple[str | None, ...]:
    """Returns logical axes, with None for each axis that `sharding` does not divide."""
    return tuple(None if n in SHARDINGS[self.sharding] else n for n in names)


@dataclasses.dataclass(frozen=True)
class T5Config(NetworkConfig):
  """The shape of a T5 1.0, T5 1.1, mT5, uMT5 or MADLAD-400 network.

  T5 1.0 is `mlp_activations=("relu",), logits_via_embedding=True`; T5 1.1 is
  `mlp_activations=("gelu", "linear"), logits_via_embedding=False`.
  """

  # Encoder blocks. A draft that uses the target's encoder has 0.
  num_encoder_layers: int = 6
  num_decoder_layers: int = 6  # Decoder blocks.
  # Whether each layer has a separate relative position bias, as in uMT5. Otherwise
  # all layers of a stack share a bias.
  relpos_per_layer: bool = False
  start_token: int = 0  # First token that the decoder reads.

  @property
  def encoder_side(self) -> "T5Config":
    """The sizes of the encoder, equal to the decoder's sizes."""
    return self


@dataclasses.dataclass(frozen=True)
class GptConfig(NetworkConfig):
  """The shape of a decoder-only network, as of T5X's `examples/decoder_only`."""

  num_layers: int = 6  # Decoder blocks.

  @property
  def num_decoder_layers(self) -> int:
    """The number of decoder blocks, which is the number of all blocks."""
    return self.num_layers


def config_from_shapes(
  shapes: Mapping[str, tuple[int, ...]], dtype: str = "float32"
) -> T5Config | GptConfig:
  """Returns the configuration of a network with these parameters.

  A decoder-only network has its embedding inside the decoder.

  Args:
    shapes: shape of each parameter by path, for example
      decoder/layers_0/mlp/wo/kernel.
    dtype: dtype of the activations.

  Raises:
    ValueError: if the network is neither an encoder-decoder T5 nor decoder-only.
  """
  if GEMMA_NORM in shapes:
    raise ValueError(
      "The parameters belong to a T5Gemma, and shapes do not determine a T5Gemma's "
      "windows, positions and caps. Give the GemmaConfig: "
      "`load_model(.., config=..)`."
    )
  is_gpt = "decoder/token_embedder/embedding" in shapes
  per_layer = "decoder/layers_0/relpos_bias/rel_embedding" in shapes
  gated = "decoder/layers_0/mlp/wi_0/kernel" in shapes
  try:
    embedding = shapes[f"{'decoder/' if is_gpt else ''}token_embedder/embedding"]
    bias = f"decoder/{'layers_0/' if per_layer else ''}relpos_bias/rel_embedding"
    num_heads = shapes[bias][0]
    joined = shapes["decoder/layers_0/self_attention/query/kernel"][1]
    mlp_dim = shapes["decoder/layers_0/mlp/wo/kernel"][0]
  except KeyError as error:
    raise ValueError(
      "Expected a T5 encoder-decoder or a decoder-only network with T5X's parameter "
      f"names, but parameter {error} is missing among the {len(shapes)} parameters."
    ) from error

  def count(part):
    prefix = f"{part}/layers_"
    return len({name.split("/")[1] for name in shapes if name.startswith(prefix)})

  settings = {
    "vocab_size": embedding[0],
    "dtype": dtype,
    "emb_dim": embedding[1],
    "num_heads": num_heads,
    "head_dim": joined // num_heads,
    "mlp_dim": mlp_dim,
    "mlp_activations": ("gelu", "linear") if gated else ("relu",),
    "logits_via_embedding": "decoder/logits_dense/kernel" not in shapes,
    "hot": hot.size(shapes, "decoder/"),
  }
  if is_gpt:
    return GptConfig(num_layers=count("decoder"), **settings)
  return T5Config(
    num_encoder_layers=count("encoder"),
    num_decoder_layers=count("decoder"),
    relpos_per_layer=per_layer,
    **settings,
  )
