"""The hyperparameters of a network: T5, or decoder-only."""

import contextlib
import dataclasses
import sys
from collections.abc import Mapping, Sequence
from typing import ClassVar

import jax.numpy as jnp

from specdec_t5x.core.checks import is_whole
from specdec_t5x.network import hot, products

ACTIVATIONS = ("linear", "relu", "gelu", "silu", "swish", "tanh")
# float16 has no room for T5's activations, nor for the mask: both overflow.
DTYPES = ("float32", "bfloat16")
# Bits of a rounded network's weights; 0: they are as they were restored.
WEIGHTS = {"float32": 0, "int8": 8}
HEADS = ("auto", "certified", "full")
# A parameter that only a T5Gemma has.
GEMMA_NORM = "decoder/layers_0/post_mlp_layer_norm/scale"
# How a network lies on the devices of the mesh's 'model' axis, by the logical axes that
# stay whole: relative position biases and caches alone are divided by heads.
SHARDINGS = {
  "full": (),
  "no_heads": ("heads",),
  "replicated": ("vocab", "embed", "mlp", "heads", "joined_kv"),
}


@dataclasses.dataclass(frozen=True)
class Reach:
  """How a layer with rotary positions sees them.

  Attributes:
    window: it sees tokens less than so far before and behind; None is all.
    theta: base of the wavelengths.
    factor: positions are divided by it.
  """

  window: tuple[int, int] | None
  theta: float
  factor: float = 1.0


# Fields of whole numbers that may be 0; the others are at least 1.
_MAY_BE_0 = ("num_encoder_layers", "hot", "start_token")


@dataclasses.dataclass(frozen=True)
class NetworkConfig:
  """What the blocks of any of our networks are made of, under T5X's field names.

  Attributes:
    vocab_size: rows of the embedding, padding rows included.
    dtype: of the activations; parameters keep the dtype that they were restored in.
    emb_dim: width of the residual stream (D).
    num_heads: attention heads (H).
    head_dim: width of one head.
    mlp_dim: width of the feed-forward layer.
    mlp_activations: one name an input projection; their outputs are multiplied.
    dropout_rate: used only where dropout is enabled.
    logits_via_embedding: whether the embedding is also the output projection.
    float32_attention_logits: whether attention scores are float32 at any `dtype`.
    sharding: one of `SHARDINGS`: which of the partitioner's rules this network obeys.
    products: of few rows: 'native' is our own, 'xla' XLA's, 'auto' our own where they
      can be had; on a GPU where they are faster, too (`native.cuda.choice`).
    weights: one of `WEIGHTS`: 'int8' is the network of rounded ones (`rounded`), which
      is another one than its checkpoint's.
    head: one of `HEADS`: of a target, whether logits that can't be the largest are
      computed where nothing else is read of them (`certified`); 'auto' leaves them out
      where that pays.
    hot: tokens that its projection knows, of a draft that is trimmed to them (`hot`); 0
      is all.
  """

  vocab_size: int
  dtype: str = "float32"
  emb_dim: int = 512
  num_heads: int = 8
  head_dim: int = 64
  mlp_dim: int = 2048
  mlp_activations: Sequence[str] = ("relu",)
  dropout_rate: float = 0.1
  logits_via_embedding: bool = False
  float32_attention_logits: bool = False
  sharding: str = "full"
  products: str = "auto"
  weights: str = "float32"
  head: str = "auto"
  hot: int = 0

  # What a T5 has or has not; `gemma` has it otherwise.
  relpos_per_layer: ClassVar[bool] = False
  is_gemma: ClassVar[bool] = False  # Norms by 1 + w, after sublayers too; sqrt(D).
  merged: ClassVar[bool] = False
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
      raise ValueError(
        f"{kind}.dtype must be one of {DTYPES}, got {self.dtype!r}. Set "
        "ACTIVATION_DTYPE to 'bfloat16' for 16 bits: T5's activations outgrow float16."
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
      raise ValueError(
        f"WEIGHTS must be one of {tuple(WEIGHTS)}, got {self.weights!r}: 'float32' is "
        "the checkpoint's network, in PARAM_DTYPE, 'int8' one of rounded weights."
      )
    if self.head not in HEADS:
      raise ValueError(f"HEAD must be one of {HEADS}, got {self.head!r}.")
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
    """The most rows whose norms and attention are our own kernels', where these run.

    Of rounded weights any: by XLA's a row's last digits depend on the other rows, and
    activations that are rounded make steps of them. In bfloat16 likewise.
    """
    is_rounded = WEIGHTS[self.weights] or self.dtype == "bfloat16"
    return sys.maxsize if is_rounded else products.MAX_ROWS

  @property
  def kv_heads(self) -> int:
    """The heads of keys and values."""
    return self.num_heads

  def reaches(self, layers: int, is_encoder: bool) -> tuple[Reach | None, ...]:
    """Returns how each layer of a stack sees positions, where not by a relative bias.

    Args:
      layers: of the stack.
      is_encoder: whether it is the encoder, whose windows have two sides.
    """
    del is_encoder
    return (None,) * layers

  def axes(self, *names: str) -> tuple[str | None, ...]:
    """Returns logical axes, None where `sharding` keeps the network whole."""
    return tuple(None if n in SHARDINGS[self.sharding] else n for n in names)


@dataclasses.dataclass(frozen=True)
class T5Config(NetworkConfig):
  """The shape of a T5 1.0, T5 1.1, mT5, uMT5 or MADLAD-400 network.

  T5 1.0 is `mlp_activations=("relu",), logits_via_embedding=True`; T5 1.1 is
  `mlp_activations=("gelu", "linear"), logits_via_embedding=False`.

  Attributes:
    num_encoder_layers: encoder blocks; 0 is a draft on its target's encoder, which has
      none of its own.
    num_decoder_layers: decoder blocks.
    relpos_per_layer: whether each layer has a relative position bias of its own, as in
      uMT5; else all of a stack share one.
    start_token: the token that the decoder reads first.
  """

  num_encoder_layers: int = 6
  num_decoder_layers: int = 6
  relpos_per_layer: bool = False
  start_token: int = 0

  @property
  def encoder_side(self) -> "T5Config":
    """The sizes of the encoder, which are the decoder's."""
    return self


@dataclasses.dataclass(frozen=True)
class GptConfig(NetworkConfig):
  """The shape of a decoder-only network, as of T5X's `examples/decoder_only`.

  Attributes:
    num_layers: its blocks.
  """

  num_layers: int = 6

  @property
  def num_decoder_layers(self) -> int:
    """The blocks of its decoder, which are all it has."""
    return self.num_layers


def config_from_shapes(
  shapes: Mapping[str, tuple[int, ...]], dtype: str = "float32"
) -> T5Config | GptConfig:
  """Returns the configuration of a network with these parameters.

  A decoder-only network has its embedding inside the decoder.

  Args:
    shapes: of each parameter by its path, as decoder/layers_0/mlp/wo/kernel.
    dtype: of the activations.

  Raises:
    ValueError: where they are neither an encoder-decoder T5's nor a decoder-only's.
  """
  if GEMMA_NORM in shapes:
    raise ValueError(
      "These are parameters of a T5Gemma, whose windows, positions and caps no shape "
      "tells. Give its GemmaConfig: in gin the target.gin that python -m "
      "specdec_t5x.convert writes, in Python `load_model(.., config=..)`."
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
      f"There is no parameter {error} among the {len(shapes)}: this is not a T5 "
      "encoder-decoder, or a decoder-only network, with T5X's parameter names."
    ) from error
  count = lambda part: len(
    {name.split("/")[1] for name in shapes if name.startswith(f"{part}/layers_")}
  )
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
