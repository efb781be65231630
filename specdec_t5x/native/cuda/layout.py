"""The layout of a decoder's weights for the kernel of a draft step (step.cuh).

Each block of the kernel reads one stream from start to end. A stream consists of
fragments: 16 columns by 16 inputs of a matrix. The numbers of a fragment are in the
order in which the lanes of a warp hold the numbers for a tensor core's product.

Shapes: D width, H heads, K head width, F hidden units of a head's cluster, M all hidden
units, V vocabulary, C blocks of a cluster.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from specdec_t5x.network.layers import bucket

_TILE = 16
_PER_CHUNK = 32  # Fragments of one copy.
_HEAD = 64
_MOST_HEADS = 16
_MOST_LAYERS = 24
# All distances of at least 128 tokens have the same bias.
DISTANCES = 129


@dataclasses.dataclass(frozen=True)
class StepLayout:
  """The division of a decoder among the kernel's blocks.

  Attributes:
    width: width of the decoder (D).
    heads: attention heads (H).
    mlp: hidden units of a feed-forward layer (M).
    vocab: vocabulary size (V).
    layers: layers of the decoder.
    cluster: blocks that compute one head (C).
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
        f"The width must be divisible by 32 times the cluster ({32 * self.cluster}), "
        f"got {self.width}. Use a smaller cluster."
      )
    if self.heads > _MOST_HEADS or self.layers > _MOST_LAYERS:
      raise ValueError(
        f"Expected at most {_MOST_HEADS} heads and {_MOST_LAYERS} layers, got "
        f"{self.heads} and {self.layers}. Use XLA's step for larger decoders."
      )

  @property
  def blocks(self) -> int:
    """The number of blocks of the grid."""
    return self.heads * self.cluster

  @property
  def hidden(self) -> int:
    """The hidden units of a head's cluster: F, with H F >= M."""
    return -(-self.mlp // (self.heads * _TILE)) * _TILE

  @property
  def tiles(self) -> int:
    """The number of tiles of 16 logits per block."""
    return -(-self.vocab // (_TILE * self.blocks))


def cluster_of(heads: int) -> int:
  """Returns the fastest number of blocks per cluster, measured on an H100.

  An H100 runs 15 clusters of 8 blocks at once, or 30 clusters of 4 blocks.
  """
  return 8 if heads <= 15 else 4


def fragments(matrix: Float[Array, "*batch O I"]) -> Float[Array, "*batch _ 256"]:
  """Returns matrices [outputs, inputs] as fragments, in tiles of 16 outputs."""
  *batch, outputs, inputs = matrix.shape
  # A lane holds outputs g and g + 8, and 4 inputs from 4 t on, as two pairs.
  parts = matrix.reshape(-1, outputs // _TILE, 2, 8, inputs // _TILE, 4, 2, 2)
  parts = parts.transpose(0, 1, 4, 3, 5, 6, 2, 7)
  return parts.reshape(*batch, -1, _TILE * _TILE)


def stream(layout: StepLayout, params: Mapping[str, Any]) -> Float[Array, "H C _ 8192"]:
  """Returns the weights of a decoder in bfloat16, chunk by chunk for each block.

  Args:
    layout: division of the decoder.
    params: parameters of a T5's `Transformer`: "decoder", and "token_embedder" if the
      embedding projects to the logits.
  """
  decoder = params["decoder"]
  layers = [decoder[f"layers_{i}"] for i in range(layout.layers)]

  def stacked(module, name):
    # One array for all layers needs few operations, which compile quickly.
    kernels = [layer[module][name]["kernel"].astype(jnp.bfloat16) for layer in layers]
    return jnp.stack(kernels)

  attention = "self_attention"
  cross = "encoder_decoder_attention"
  mlp_names = ("wi_0", "wi_1") if "wi_0" in layers[0]["mlp"] else ("wi",)
  projections = [stacked(attention, name) for name in ("query", "key", "value")]
  mlp_inputs = [stacked("mlp", name) for name in mlp_names]
  parts = [
    _by_inputs(layout, projections, _HEAD),
    _by_outputs(layout, stacked(attention, "out"), _HEAD),
    _by_inputs(layout, [stacked(cross, "query")], _HEAD),
    _by_outputs(layout, stacked(cross, "out"), _HEAD),
    _by_inputs(layout, mlp_inputs, layout.hidden),
    _by_outputs(layout, stacked("mlp", "wo"), layout.hidden),
  ]
  # [L, H C, fragments, 256] to [H C, L fragments, 256]: each block reads the layers in
  # order.
  joined = jnp.concatenate(parts, axis=2).swapaxes(0, 1)
  joined = joined.reshape(layout.blocks, -1, _TILE * _TILE)
  logits = _logits(layout, params).astype(jnp.bfloat16)
  streams = jnp.concatenate([joined, logits], axis=1)
  streams = jnp.pad(streams, ((0, 0), (0, -streams.shape[1] % _PER_CHUNK), (0, 0)))
  return streams.reshape(layout.heads, layout.cluster, -1, _PER_CHUNK * _TILE * _TILE)


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


def distance_biases(table: Float[Array, "H buckets"]) -> Float[Array, "H 129"]:
  """Returns each head's bias of the tokens 0 .. 128 before a token.

  Args:
    table: biases of the buckets, by head.
  """
  buckets = bucket(-np.arange(DISTANCES), False)
  return jnp.asarray(table, jnp.float32)[:, buckets]


def scratch_words(layout: StepLayout, rows: int) -> int:
  """Returns the size of the kernel's scratch memory in 32-bit words."""
  return 2 * (32 + 2 * rows * (layout.heads * layout.width + layout.blocks))


def _by_inputs(layout, kernels: Sequence[Float[Array, "L D _"]], size: int):
  """Returns fragments of matrices with inputs divided among a cluster's blocks."""
  missing = layout.heads * size - kernels[0].shape[2]
  kernels = [jnp.pad(kernel, ((0, 0), (0, 0), (0, missing))) for kernel in kernels]
  layers = len(kernels[0])
  outputs = len(kernels) * size
  shape = layers, layout.cluster, -1, layout.heads, size
  parts = jnp.stack([kernel.reshape(shape) for kernel in kernels], axis=4)
  # [L, C, inputs, H, matrices, size] to [L, H, C, outputs, inputs].
  parts = parts.transpose(0, 3, 1, 4, 5, 2)
  return fragments(parts.reshape(layers, layout.blocks, outputs, -1))


def _by_outputs(layout, kernels: Float[Array, "L _ D"], size: int):
  """Returns fragments of [H size, D].

  Inputs are divided among clusters, outputs among the blocks of a cluster.
  """
  missing = layout.heads * size - kernels.shape[1]
  kernels = jnp.pad(kernels, ((0, 0), (0, missing), (0, 0)))
  parts = kernels.reshape(len(kernels), layout.heads, size, layout.cluster, -1)
  parts = parts.transpose(0, 1, 3, 4, 2)
  return fragments(parts.reshape(len(kernels), layout.blocks, -1, size))


def _logits(layout, params):
  if "logits_dense" in params["decoder"]:
    kernel = params["decoder"]["logits_dense"]["kernel"].T
  else:
    kernel = params["token_embedder"]["embedding"]
  rows = layout.blocks * layout.tiles * _TILE
  kernel = jnp.pad(kernel, ((0, rows - len(kernel)), (0, 0)))
  return fragments(kernel.reshape(layout.blocks, -1, layout.width))
