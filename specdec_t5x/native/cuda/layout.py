"""Weights of a decoder as the kernel of a draft step (step.cuh) reads them.

Each block of the kernel reads one stream from front to end. A stream consists of
fragments: 16 columns by 16 inputs of a matrix, in the order in which the lanes of a warp
hold them for a tensor core's product.

Shapes: D width, H heads, K head width, F hidden units of a head's cluster, M all hidden
units, V vocabulary, C blocks of a cluster.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

_TILE = 16
_PER_CHUNK = 32  # Fragments of one copy.
_HEAD = 64
_MOST_HEADS = 16
_MOST_LAYERS = 24
# Beyond so many tokens all distances have one bias.
DISTANCES = 129


@dataclasses.dataclass(frozen=True)
class StepLayout:
  """How the kernel divides a decoder.

  Attributes:
    width: D.
    heads: H.
    mlp: M.
    vocab: V.
    layers: of the decoder.
    cluster: C, the blocks that work on one head.
  """

  width: int
  heads: int
  mlp: int
  vocab: int
  layers: int
  cluster: int

  def __post_init__(self):
    if self.width % (32 * self.cluster):
      raise ValueError(
        f"The width must be divisible by 32 times the cluster ({32 * self.cluster}), got "
        f"{self.width}. Use a smaller cluster."
      )
    if self.heads > _MOST_HEADS or self.layers > _MOST_LAYERS:
      raise ValueError(
        f"Expected at most {_MOST_HEADS} heads and {_MOST_LAYERS} layers, got "
        f"{self.heads} and {self.layers}. Use XLA's step for larger decoders."
      )

  @property
  def blocks(self) -> int:
    """The blocks of the grid."""
    return self.heads * self.cluster

  @property
  def hidden(self) -> int:
    """F, so that H F >= M."""
    return -(-self.mlp // (self.heads * _TILE)) * _TILE

  @property
  def tiles(self) -> int:
    """The tiles of 16 logits of a block."""
    return -(-self.vocab // (_TILE * self.blocks))


def fragments(matrix: Float[Array, "B O I"]) -> Float[Array, "B _ 256"]:
  """Returns matrices of [outputs, inputs], tile after tile of 16 outputs."""
  batch, outputs, inputs = matrix.shape
  # A lane has outputs g and g + 8 and 4 inputs from 4 t on, as two pairs.
  shape = batch, outputs // _TILE, 2, 8, inputs // _TILE, 4, 2, 2
  parts = matrix.reshape(shape).transpose(0, 1, 4, 3, 5, 6, 2, 7)
  return parts.reshape(batch, -1, _TILE * _TILE)


def stream(
  layout: StepLayout, params: Mapping[str, Any], dtype: Any = jnp.bfloat16
) -> Float[Array, "H C _ 8192"]:
  """Returns the weights of a decoder, chunk by chunk for each block.

  Args:
    layout: how the decoder is divided.
    params: of a T5's `Transformer`: "decoder", and "token_embedder" where it gives the
      logits.
    dtype: of the result.
  """
  decoder = params["decoder"]
  parts = []
  for i in range(layout.layers):
    layer = decoder[f"layers_{i}"]
    attention, cross = layer["self_attention"], layer["encoder_decoder_attention"]
    into = [_by_head(layout, attention[name]) for name in ("query", "key", "value")]
    parts.append(_by_inputs(layout, jnp.concatenate(into, axis=1)))
    parts.append(_by_outputs(layout, attention["out"], _HEAD))
    parts.append(_by_inputs(layout, _by_head(layout, cross["query"])))
    parts.append(_by_outputs(layout, cross["out"], _HEAD))
    names = ("wi_0", "wi_1") if "wi_0" in layer["mlp"] else ("wi",)
    into = [_by_head(layout, layer["mlp"][name]) for name in names]
    parts.append(_by_inputs(layout, jnp.concatenate(into, axis=1)))
    parts.append(_by_outputs(layout, layer["mlp"]["wo"], layout.hidden))
  parts.append(_logits(layout, params))
  parts = [part.reshape(layout.blocks, -1, _TILE * _TILE).astype(dtype) for part in parts]
  whole = jnp.concatenate(parts, axis=1)
  whole = jnp.pad(whole, ((0, 0), (0, -whole.shape[1] % _PER_CHUNK), (0, 0)))
  return whole.reshape(layout.heads, layout.cluster, -1, _PER_CHUNK * _TILE * _TILE)


def norms(layout: StepLayout, params: Mapping[str, Any]) -> Float[Array, "_ D"]:
  """Returns the scales of all norms, in the order of their use."""
  decoder = params["decoder"]
  names = (
    "pre_self_attention_layer_norm",
    "pre_cross_attention_layer_norm",
    "pre_mlp_layer_norm",
  )
  layers = [decoder[f"layers_{i}"] for i in range(layout.layers)]
  scales = [layer[name]["scale"] for layer in layers for name in names]
  return jnp.stack([*scales, decoder["decoder_norm"]["scale"]]).astype(jnp.bfloat16)


def distance_biases(
  table: Float[Array, "H buckets"], bucket: Any
) -> Float[Array, "H 129"]:
  """Returns each head's bias of the tokens 0 .. 128 before a token.

  Args:
    table: the biases of buckets.
    bucket: `network.layers.bucket`.
  """
  buckets = bucket(-np.arange(DISTANCES), False)
  return jnp.asarray(table, jnp.float32)[:, buckets]


def scratch_words(layout: StepLayout, rows: int) -> int:
  """Returns how many 32-bit words of zeros the kernel's first call needs."""
  return 2 * (32 + 2 * layout.heads * rows * layout.width)


def _by_head(layout, dense) -> Float[Array, "H _ D"]:
  """Returns a matrix [D, H n], perhaps less wide than that, by heads' clusters."""
  kernel = dense["kernel"].T
  size = _HEAD if len(kernel) == layout.heads * _HEAD else layout.hidden
  kernel = jnp.pad(kernel, ((0, layout.heads * size - len(kernel)), (0, 0)))
  return kernel.reshape(layout.heads, size, layout.width)


def _by_inputs(layout, matrix: Float[Array, "H O D"]):
  """Returns fragments of matrices whose inputs are divided among a cluster's blocks."""
  heads, outputs, _ = matrix.shape
  parts = matrix.reshape(heads, outputs, layout.cluster, -1).swapaxes(1, 2)
  return fragments(parts.reshape(layout.blocks, outputs, -1))


def _by_outputs(layout, dense, size: int):
  """Returns fragments of [H size, D]: inputs by cluster, outputs by its blocks."""
  kernel = dense["kernel"]
  kernel = jnp.pad(kernel, ((0, layout.heads * size - len(kernel)), (0, 0)))
  parts = kernel.reshape(layout.heads, size, layout.cluster, -1).transpose(0, 2, 3, 1)
  return fragments(parts.reshape(layout.blocks, -1, size))


def _logits(layout, params):
  if "logits_dense" in params["decoder"]:
    kernel = params["decoder"]["logits_dense"]["kernel"].T
  else:
    kernel = params["token_embedder"]["embedding"]
  rows = layout.blocks * layout.tiles * _TILE
  kernel = jnp.pad(kernel, ((0, rows - len(kernel)), (0, 0)))
  return fragments(kernel.reshape(layout.blocks, -1, layout.width))


def shapes_of(params: Mapping[str, Any]) -> Sequence[int]:
  """Returns width, heads, hidden units, vocabulary and layers of a decoder's parameters."""
  decoder = params["decoder"]
  width, joined = decoder["layers_0"]["self_attention"]["query"]["kernel"].shape
  mlp = decoder["layers_0"]["mlp"]["wo"]["kernel"].shape[0]
  vocab = params["token_embedder"]["embedding"].shape[0]
  layers = sum(name.startswith("layers_") for name in decoder)
  return width, joined // _HEAD, mlp, vocab, layers
