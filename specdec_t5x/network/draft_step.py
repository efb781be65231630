"""A draft's step by our kernel for GPUs (step.cuh).

A network keeps its own parameters: XLA scores blocks of several tokens. A step of one
token a row goes by a second set of weights, made once. Both write the same cache.

Shapes: R rows, D width, V vocabulary, N steps, W words.
"""

import dataclasses
import functools
from collections.abc import Mapping
from typing import Any

import flax.struct
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, UInt32

from specdec_t5x.core.types import ExtendFn
from specdec_t5x.native.cuda import choice, library
from specdec_t5x.native.cuda import layout as layouts
from specdec_t5x.network import functional
from specdec_t5x.network.cache import DecoderCache
from specdec_t5x.network.config import T5Config
from specdec_t5x.network.layers import bucket

_SHARED = 227 * 1024  # Bytes of a block's shared memory.
_CHUNK = 16 * 1024
_MOST_ROWS = 8
_LEAST_RING = 3  # Chunks of weights, with which the kernel is tested.
# What a network's configuration must say for the kernel to compute its step.
_FIELDS = {
  "dtype": ("bfloat16",),
  "head_dim": (64,),
  "mlp_activations": (("relu",), ("gelu", "linear")),
  "weights": ("float32",),
  "relpos_per_layer": (False,),
  "is_gemma": (False,),
  "hot": (0,),
  "start_token": (0,),
}


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

  def scratch(self, rows: int) -> UInt32[Array, "R W"]:
    """Returns the zeros that the first call starts from."""
    return jnp.zeros((rows, layouts.scratch_words(self.layout, 1)), jnp.uint32)

  def problem(self, rows: int) -> str | None:
    """Returns why this GPU can't run the step; None if it can."""
    if rows > _MOST_ROWS:
      return f"there are {rows} rows; the kernel takes {_MOST_ROWS}"
    if reason := library.problem():
      return reason
    if self._ring(rows) < _LEAST_RING:
      return (
        f"{rows} rows leave no room for weights in a block's shared memory: the "
        f"decoder's {self.layout.hidden} hidden units a head are too many"
      )
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
    scratch: UInt32[Array, "R W"],
    steps: int = 1,
  ) -> tuple[
    Int[Array, "N R"],
    Float[Array, "N R V"],
    Float[Array, "N R D"],
    DecoderCache,
    UInt32[Array, "R W"],
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


@dataclasses.dataclass(frozen=True)
class Prepare:
  """Makes the weights of a step as arrays by name, as parameters are.

  Attributes:
    step: whose weights they are.
  """

  step: DraftStep

  def __call__(self, params: Mapping[str, Any]) -> dict[str, Array]:
    """Returns the fields of `StepWeights`."""
    made = jax.jit(self.step.prepared)(params)
    return {field.name: getattr(made, field.name) for field in dataclasses.fields(made)}


def name_of(network_name: str) -> str:
  """Returns the name among a decode's parameters of the weights of a network's step."""
  return f"{network_name}_step"


def derived(network_name: str, network: Any) -> dict[str, Prepare]:
  """Returns what makes the weights of a network's step, by its name, if there is one.

  Raises:
    ValueError: if PRODUCTS='native' asks for a step that there is not.
  """
  reason = problem_of(network)
  config = getattr(network, "config", None)
  is_asked_for = getattr(config, "products", None) == "native"
  if reason and is_asked_for and is_for_gpu():
    raise ValueError(
      f"PRODUCTS='native' can't be had for the {network_name}'s step: {reason}. Use "
      "'auto' or 'xla'."
    )
  return {} if reason else {name_of(network_name): Prepare(of_network(network))}


def is_for_gpu() -> bool:
  """Returns whether programs are for a GPU, or its kernels can be called elsewhere."""
  return jax.default_backend() == "gpu" or library.problem() is None


def problem_of(network: Any, rows: int = 1) -> str | None:
  """Returns why our kernel can't compute a network's step here; None if it can."""
  if not isinstance(getattr(network, "config", None), T5Config):
    return f"a {type(network).__name__} is not an encoder-decoder"
  if network.config.products == "xla":
    return "PRODUCTS is 'xla'"
  for name, expected in _FIELDS.items():
    if (value := getattr(network.config, name)) not in expected:
      choices = " or ".join(map(repr, expected))
      return f"the network's {name} is {value!r}; the kernel takes {choices}"
  if reason := library.problem():
    return reason
  try:
    return of_network(network).problem(rows)
  except ValueError as error:
    return str(error)


def of_network(network: Any) -> DraftStep:
  """Returns the step of a T5.

  Raises:
    ValueError: if the kernel can't divide such a decoder.
  """
  cfg = network.config
  sizes = cfg.emb_dim, cfg.num_heads, cfg.mlp_dim, cfg.vocab_size
  layout = layouts.StepLayout(
    *sizes, cfg.num_decoder_layers, layouts.cluster_of(cfg.num_heads)
  )
  scale = cfg.emb_dim**-0.5 if cfg.logits_via_embedding else 1.0
  return DraftStep(layout, gated=len(cfg.mlp_activations) == 2, scale=scale)


def with_scratch(network: Any, cache: DecoderCache, has_room: bool) -> DecoderCache:
  """Returns a network's first cache with the memory that its step needs.

  Args:
    network: a T5 with a step.
    cache: its first cache.
    has_room: whether it is decoded with; else rows of it go to another cache, whose
      memory stays.
  """
  scratch = of_network(network).scratch(cache.index.shape[0])
  return cache.replace(scratch=scratch if has_room else scratch[:, :0])


def extend_fn(network: Any, weights: Mapping[str, Array], extend: ExtendFn) -> ExtendFn:
  """Returns a network's `extend` with our kernel's step where that was chosen.

  Args:
    network: a T5 with a step.
    weights: of its step, as `Prepare` makes them.
    extend: the network by XLA, which scores all other blocks.
  """
  step = of_network(network)

  def extend_or_step(cache, tokens, *args, **words):
    rows, size = tokens.shape
    if size > 1 or args or words or not choice.is_used(key_of(network, rows)):
      return extend(cache, tokens, *args, **words)
    given = StepWeights(**weights), tokens[:, 0], cache, cache.scratch
    _, logits, features, cache, scratch = step(*given)
    found = logits[0][:, None], features[0][:, None]
    return *found, cache.replace(scratch=scratch)

  return extend_or_step


def key_of(network: Any, rows: int) -> tuple[Any, ...]:
  """Returns what a choice between our step and XLA's depends on."""
  return "step", network.config, rows


# Slots of a cache, inputs and known tokens of the steps that are compared.
_INPUTS, _KNOWN = 32, 4


def contest(
  network: Any,
  params: Mapping[str, Any],
  weights: Mapping[str, Array],
  rows: int,
) -> choice.Contest:
  """Returns our step and XLA's, several times one after another.

  Args:
    network: a T5 with a step.
    params: its parameters.
    weights: of its step.
    rows: how many decode at once.
  """
  step, config = of_network(network), network.config
  draw = np.random.default_rng(0)
  encoded = draw.normal(size=(rows, _INPUTS, config.emb_dim))
  shape = rows, _KNOWN + choice.CALLS
  tokens = jnp.asarray(draw.integers(1, config.vocab_size, shape), jnp.int32)

  def scored(dtype, scores_by_step=False):
    of_dtype = dataclasses.replace(config, dtype=dtype, products="xla")
    module = network.clone(config=of_dtype)
    prefix, later = tokens[:, :_KNOWN], tokens[:, _KNOWN:].T

    @jax.jit
    def start(params):
      inputs = jnp.asarray(encoded, dtype), jnp.ones((rows, _INPUTS), jnp.int32)
      cache = module.apply({"params": params}, *inputs, shape[1], method="start")
      cache = functional.extend_fn(module, params)(cache, prefix)[2]
      return cache.replace(scratch=step.scratch(rows))

    @jax.jit
    def run(params, weights, cache):
      extend = functional.extend_fn(module, params)

      def score(cache, tokens):
        if scores_by_step:
          given = StepWeights(**weights), tokens, cache, cache.scratch
          _, logits, _, cache, scratch = step(*given)
          return cache.replace(scratch=scratch), logits[0]
        logits, _, cache = extend(cache, tokens[:, None])
        return cache, logits[:, 0]

      return jax.lax.scan(score, cache, later)[1]

    # Compiled and filled at the first call, which is not timed.
    first = functools.cache(lambda: start(params))
    return lambda: run(params, weights, first())

  return choice.Contest(
    f"Draft step of {rows} row{'s' if rows > 1 else ''}",
    scored("bfloat16", scores_by_step=True),
    scored("bfloat16"),
    scored("float32"),
  )
