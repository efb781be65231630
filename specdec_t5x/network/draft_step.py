"""A draft's step by our kernel for GPUs (step.cuh).

Shapes: R rows, D width, V vocabulary, N steps.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any

import flax.struct
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from specdec_t5x.native.cuda import layout as layouts
from specdec_t5x.native.cuda import library
from specdec_t5x.network.cache import DecoderCache
from specdec_t5x.network.layers import bucket

_SHARED = 227 * 1024  # Bytes of a block's shared memory.
_CHUNK = 16 * 1024
_MOST_ROWS = 8


@flax.struct.dataclass
class StepWeights:
  """A decoder's weights as the kernel reads them.

  Attributes:
    weights: the streams of all blocks.
    embedding: of the tokens.
    norms: the scales of all norms.
    biases: of the distances, by heads.
  """

  weights: Float[Array, "H C _ 8192"]
  embedding: Float[Array, "V D"]
  norms: Float[Array, "_ D"]
  biases: Float[Array, "H 129"]


@dataclasses.dataclass(frozen=True)
class DraftStep:
  """The step of one decoder.

  Attributes:
    layout: how the decoder is divided.
    gated: whether its feed-forward layers are gated, as T5 1.1's.
    scale: of the logits: 1 / sqrt(D) where the embedding gives them.
    cooperative: whether the launch asks for all blocks to run at once, or fails.
  """

  layout: layouts.StepLayout
  gated: bool = True
  scale: float = 1.0
  cooperative: bool = True

  def prepared(self, params: Mapping[str, Any]) -> StepWeights:
    """Returns the parameters of a T5's `Transformer` as the kernel reads them."""
    table = params["decoder"]["relpos_bias"]["rel_embedding"]
    return StepWeights(
      weights=layouts.stream(self.layout, params),
      embedding=params["token_embedder"]["embedding"].astype(jnp.bfloat16),
      norms=layouts.norms(self.layout, params),
      biases=layouts.distance_biases(table, bucket),
    )

  def scratch(self, rows: int) -> Int[Array, "_"]:
    """Returns the zeros that the first call starts from."""
    return jnp.zeros(layouts.scratch_words(self.layout, rows), jnp.uint32)

  def problem(self, rows: int) -> str | None:
    """Returns why this GPU can't run the step; None if it can."""
    if rows > _MOST_ROWS:
      return f"there are {rows} rows; the kernel takes {_MOST_ROWS}"
    if reason := library.problem():
      return reason
    shape = self.layout.cluster, self._bytes(rows) + _CHUNK * self._ring(rows)
    clusters = library.loaded().specdec_step_clusters(*shape)
    if clusters < self.layout.heads:
      return (
        f"{self.layout.heads} clusters of {self.layout.cluster} blocks are needed at "
        f"once; the GPU has room for {clusters}"
      )
    return None

  def __call__(
    self,
    weights: StepWeights,
    tokens: Int[Array, "R"],
    cache: DecoderCache,
    scratch: Int[Array, "_"],
    steps: int = 1,
  ) -> tuple[
    Int[Array, "N R"],
    Float[Array, "N R V"],
    Float[Array, "N R D"],
    DecoderCache,
    Int[Array, "_"],
  ]:
    """Scores a token of each row, and decodes greedily from it for `steps` steps.

    Args:
      weights: of `prepared`.
      tokens: written to slots index .. of the cache, as are those that follow.
      cache: with a free slot for each step.
      scratch: as the last call with so many rows returned it.
      steps: tokens that are scored; each is the argmax of the logits before.

    Returns:
      The argmax of each step, logits, features, the cache with all steps committed, and
      the scratch memory.
    """
    rows, layers = len(tokens), self.layout.layers
    own, cross = (*cache.keys, *cache.values), (*cache.cross_keys, *cache.cross_values)
    shape = jax.ShapeDtypeStruct
    results = (
      shape((steps, rows), jnp.int32),
      shape((steps, rows, self.layout.vocab), jnp.float32),
      shape((steps, rows, self.layout.width), jnp.bfloat16),
      shape(scratch.shape, scratch.dtype),
      *(shape(x.shape, x.dtype) for x in own),
    )
    aliases = {7: 3, **{8 + i: 4 + i for i in range(2 * layers)}}
    call = jax.ffi.ffi_call("specdec_step", results, input_output_aliases=aliases)
    chosen, logits, features, scratch, *own = call(
      *(tokens, cache.index, weights.weights, weights.embedding, weights.norms),
      *(weights.biases, cache.encoder_mask, scratch, *own, *cross),
      hidden=np.int64(self.layout.hidden),
      gated=np.int64(self.gated),
      scale=np.float32(self.scale),
      ring=np.int64(self._ring(rows)),
      cooperative=np.int64(self.cooperative),
    )
    cache = cache.replace(
      index=cache.index + steps, keys=tuple(own[:layers]), values=tuple(own[layers:])
    )
    return chosen, logits, features, cache, scratch

  def _ring(self, rows: int) -> int:
    """The chunks of weights that fit into shared memory."""
    return min((_SHARED - self._bytes(rows)) // _CHUNK, 12)

  def _bytes(self, rows: int) -> int:
    shape = self.layout.cluster, rows, self.layout.width, self.layout.hidden
    return library.loaded().specdec_step_bytes(*shape)
