"""A draft's step by our kernel for GPUs (step.cuh).

XLA scores blocks of several tokens with the network's parameters. The kernel scores one
token per row with a second set of weights, which is prepared once. XLA and the kernel
write the same cache.

Shapes: R rows, D width, V vocabulary, N steps, W words.
"""

import dataclasses
import functools
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, UInt32

from specdec_t5x.core.knobs import KnobError
from specdec_t5x.core.types import DraftFn, ExtendFn
from specdec_t5x.native.cuda import choice, library
from specdec_t5x.native.cuda import layout as layouts
from specdec_t5x.network import functional
from specdec_t5x.network.cache import DecoderCache
from specdec_t5x.network.config import T5Config

_SHARED = 227 * 1024  # Bytes of a block's shared memory.
_CHUNK = 16 * 1024
_MOST_ROWS = 8
_LEAST_RING = 3  # The fewest chunks of weights with which the kernel is tested.
# Values of a network's configuration that the kernel supports.
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


@dataclasses.dataclass(frozen=True)
class DraftStep:
  """The step of one decoder.

  Attributes:
    layout: division of the decoder among the GPU's blocks.
    gated: whether the feed-forward layers are gated, as in T5 1.1.
    scale: factor of the logits: 1 / sqrt(D) if the embedding projects to the logits.
  """

  layout: layouts.StepLayout
  gated: bool = True
  scale: float = 1.0

  def prepared(self, params: Mapping[str, Any]) -> dict[str, Array]:
    """Returns the parameters of a T5's `Transformer` in the kernel's layout.

    The result has the streams of all blocks (`layout.stream`), the embedding [V, D] of
    the tokens, the scales of all norms, and the attention biases by head and distance.
    """
    table = params["decoder"]["relpos_bias"]["rel_embedding"]
    return {
      "weights": layouts.stream(self.layout, params),
      "embedding": params["token_embedder"]["embedding"].astype(jnp.bfloat16),
      "norms": layouts.norms(self.layout, params),
      "biases": layouts.distance_biases(table),
    }

  def scratch(self, rows: int) -> UInt32[Array, "R W"]:
    """Returns the scratch memory of the first call: zeros."""
    return jnp.zeros((rows, layouts.scratch_words(self.layout, 1)), jnp.uint32)

  def problem(self, rows: int) -> str | None:
    """Returns why this GPU can't run the step, or None."""
    if rows > _MOST_ROWS:
      return f"there are {rows} rows; the kernel takes {_MOST_ROWS}"
    if reason := library.problem():
      return reason
    if self._ring(rows) < _LEAST_RING:
      return (
        f"{rows} rows leave no room for weights in a block's shared memory: the "
        f"decoder's {self.layout.hidden} hidden units a head are too many"
      )
    shared_bytes = self._bytes(rows) + _CHUNK * self._ring(rows)
    clusters = library.loaded().specdec_step_clusters(self.layout.cluster, shared_bytes)
    if clusters < self.layout.heads:
      return (
        f"the kernel needs {self.layout.heads} clusters of {self.layout.cluster} "
        f"blocks at once; the GPU has room for {clusters} clusters"
      )
    return None

  def __call__(
    self,
    weights: Mapping[str, Array],
    tokens: Int[Array, "R"],
    cache: DecoderCache,
    scratch: UInt32[Array, "R W"],
    steps: int = 1,
    *,
    noise: Float[Array, "N R V"] | None = None,
    temperature: float = 1.0,
  ) -> tuple[
    Int[Array, "N R"],
    Float[Array, "N R V"],
    Float[Array, "N R D"],
    DecoderCache,
    UInt32[Array, "R W"],
  ]:
    """Scores a token of each row, and decodes `steps` steps in one launch.

    Args:
      weights: result of `prepared`.
      tokens: first token of each row. This token and the following tokens are written
        to the cache from slot `index` on.
      cache: cache with a free slot for each step.
      scratch: scratch memory that the last call with the same number of rows returned.
      steps: number of tokens to score. Each token after the first is the token that
        the step before chose.
      noise: noise of coupled draws. A step chooses the argmax of logits / temperature +
        noise; without noise the argmax of the logits.
      temperature: temperature of the draws.

    Returns:
      The token that each step chose (-1 if a logit is NaN or infinity), logits,
      features, the cache with all steps committed, and the scratch memory.
    """
    rows, inputs = cache.encoder_mask.shape
    ring = self._ring(rows, inputs)
    if ring < _LEAST_RING:
      raise KnobError(
        "{rows} rows with inputs of {inputs} tokens leave no room for the weights of "
        "the draft's step in a block's shared memory. Use fewer rows, shorter inputs, "
        "or a draft with {products}='xla'.",
        rows=rows,
        inputs=inputs,
      )
    layers = self.layout.layers
    buffers = (*cache.keys, *cache.values)
    shape = jax.ShapeDtypeStruct
    results = (
      shape((steps, rows), jnp.int32),
      shape((steps, rows, self.layout.vocab), jnp.float32),
      shape((steps, rows, self.layout.width), jnp.bfloat16),
      shape(scratch.shape, scratch.dtype),
      *(shape(x.shape, x.dtype) for x in buffers),
    )
    aliases = {8: 3, **{9 + i: 4 + i for i in range(2 * layers)}}
    call = jax.ffi.ffi_call("specdec_step", results, input_output_aliases=aliases)
    argmaxes, logits, features, scratch, *buffers = call(
      tokens,
      cache.index,
      weights["weights"],
      weights["embedding"],
      weights["norms"],
      weights["biases"],
      cache.encoder_mask,
      jnp.zeros(0) if noise is None else noise,
      scratch,
      *buffers,
      *cache.cross_keys,
      *cache.cross_values,
      hidden=np.int64(self.layout.hidden),
      gated=np.int64(self.gated),
      scale=np.float32(self.scale),
      temperature=np.float32(temperature),
      ring=np.int64(ring),
    )
    cache = cache.replace(
      index=cache.index + steps,
      keys=tuple(buffers[:layers]),
      values=tuple(buffers[layers:]),
    )
    return argmaxes, logits, features, cache, scratch

  def _ring(self, rows: int, inputs: int = 1) -> int:
    """Returns how many chunks of weights fit into shared memory."""
    return min((_SHARED - self._bytes(rows, inputs)) // _CHUNK, 12)

  def _bytes(self, rows: int, inputs: int = 1) -> int:
    layout = self.layout
    return library.loaded().specdec_step_bytes(
      layout.cluster, rows, layout.width, layout.hidden, inputs
    )


@dataclasses.dataclass(frozen=True)
class Prepare:
  """Makes the weights of a step."""

  step: DraftStep

  def __call__(self, params: Mapping[str, Any]) -> dict[str, Array]:
    """Returns the result of `DraftStep.prepared`."""
    return jax.jit(self.step.prepared)(params)


def name_of(network_name: str) -> str:
  """Returns the name of a step's weights among a decode's parameters."""
  return f"{network_name}_step"


def derived(network_name: str, network: Any) -> dict[str, Prepare]:
  """Returns the function that makes a step's weights, by name; empty without a step.

  Raises:
    ValueError: if products='native' asks for a step that our kernel can't compute.
  """
  reason = problem_of(network)
  config = getattr(network, "config", None)
  is_asked_for = getattr(config, "products", None) == "native"
  if reason and is_asked_for and is_for_gpu():
    raise KnobError(
      "{products}='native' is not available for the {network}'s step: {reason}. Use "
      "'auto' or 'xla'.",
      network=network_name,
      reason=reason,
    )
  return {} if reason else {name_of(network_name): Prepare(of_network(network))}


def is_for_gpu() -> bool:
  """Returns whether programs run on a GPU, or can call the GPU's kernels elsewhere."""
  return jax.default_backend() == "gpu" or library.problem() is None


def problem_of(network: Any, rows: int = 1) -> str | None:
  """Returns why our kernel can't compute a network's step here, or None."""
  if not isinstance(getattr(network, "config", None), T5Config):
    return f"a {type(network).__name__} is not an encoder-decoder"
  if network.config.products == "xla":
    return "the network's products are XLA's"
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
    ValueError: if the kernel can't divide the decoder.
  """
  cfg = network.config
  layout = layouts.StepLayout(
    cfg.emb_dim,
    cfg.num_heads,
    cfg.mlp_dim,
    cfg.vocab_size,
    cfg.num_decoder_layers,
    layouts.cluster_of(cfg.num_heads),
  )
  scale = cfg.emb_dim**-0.5 if cfg.logits_via_embedding else 1.0
  return DraftStep(layout, gated=len(cfg.mlp_activations) == 2, scale=scale)


def with_scratch(network: Any, cache: DecoderCache, has_room: bool) -> DecoderCache:
  """Returns a network's first cache with the scratch memory of the network's step.

  Args:
    network: a T5 with a step.
    cache: first cache of the network.
    has_room: whether decoding uses this cache. Otherwise decoding copies rows of this
      cache into another cache, and the scratch memory has shape [B, 0].
  """
  scratch = of_network(network).scratch(cache.index.shape[0])
  return cache.replace(scratch=scratch if has_room else scratch[:, :0])


def extend_fn(network: Any, weights: Mapping[str, Array], extend: ExtendFn) -> ExtendFn:
  """Returns a network's `extend`, which uses our kernel's step if the step was chosen.

  Args:
    network: a T5 with a step.
    weights: weights of the step, made by `Prepare`.
    extend: `extend` by XLA, for all other blocks.
  """
  step = of_network(network)

  def extend_or_step(cache, tokens, positions=None, tree=None):
    rows, size = tokens.shape
    is_step = size == 1 and positions is None and tree is None
    if not (is_step and choice.CHOICES.is_used(key_of(network, rows))):
      return extend(cache, tokens, positions, tree)
    _, logits, features, cache, scratch = step(
      weights, tokens[:, 0], cache, cache.scratch
    )
    cache = cache.replace(scratch=scratch)
    return logits[0][:, None], features[0][:, None], cache

  return extend_or_step


def draft_fn(
  network: Any, weights: Mapping[str, Array]
) -> Callable[[int], DraftFn | None]:
  """Returns a function from rows to the draft in one launch; see `net.Net.draft`.

  The arguments are as for `extend_fn`. Without a chosen step there is no draft.
  """
  step = of_network(network)

  def draft(cache, tokens, steps, noise=None, temperature=1.0):
    chosen, _, _, cache, scratch = step(
      weights,
      tokens,
      cache,
      cache.scratch,
      steps,
      noise=noise,
      temperature=temperature,
    )
    return chosen, cache.replace(scratch=scratch)

  def at(rows):
    return draft if choice.CHOICES.is_used(key_of(network, rows)) else None

  return at


def key_of(network: Any, rows: int) -> tuple[Any, ...]:
  """Returns the key of a choice between our kernel's step and XLA's."""
  return "step", network.config, rows


# The input length and the prefix length of the steps in a contest, and noise above all
# logits.
_INPUT_LENGTH = 32
_PREFIX_LENGTH = 4
_CERTAIN = 1e30


def contest(
  network: Any,
  params: Mapping[str, Any],
  weights: Mapping[str, Array],
  rows: int,
  calls: int,
) -> choice.Contest:
  """Returns the contest of our kernel's step against XLA's, over successive steps.

  Our kernel computes the steps in one launch, with noise that chooses given tokens.

  Args:
    network: a T5 with a step.
    params: parameters of the network.
    weights: weights of the step.
    rows: number of rows that are decoded at once.
    calls: number of steps.
  """
  config = network.config
  draw = np.random.default_rng(0)
  encoded = draw.normal(size=(rows, _INPUT_LENGTH, config.emb_dim))
  shape = rows, _PREFIX_LENGTH + calls
  tokens = jnp.asarray(draw.integers(1, config.vocab_size, shape), jnp.int32)
  scored = tokens[:, _PREFIX_LENGTH:].T

  def runner(dtype, uses_step=False):
    xla_config = dataclasses.replace(config, dtype=dtype, products="xla")
    module = network.clone(config=xla_config)
    step = of_network(module)

    @jax.jit
    def start(params):
      cache = module.apply(
        {"params": params},
        jnp.asarray(encoded, dtype),
        jnp.ones((rows, _INPUT_LENGTH), jnp.int32),
        tokens.shape[1],
        method="start",
      )
      extend = functional.extend_fn(module, params)
      _, _, cache = extend(cache, tokens[:, :_PREFIX_LENGTH])
      if not uses_step:
        return cache, None
      # A step chooses the token of the next step.
      chosen = jnp.roll(scored, -1, axis=0)
      noise = _CERTAIN * jax.nn.one_hot(chosen, config.vocab_size)
      return cache.replace(scratch=step.scratch(rows)), noise

    @jax.jit
    def run(params, weights, first):
      cache, noise = first
      if uses_step:
        found = step(weights, scored[0], cache, cache.scratch, calls, noise=noise)
        return found[1]
      extend = functional.extend_fn(module, params)

      def score(cache, tokens):
        logits, _, cache = extend(cache, tokens[:, None])
        return cache, logits[:, 0]

      return jax.lax.scan(score, cache, scored)[1]

    # Compiled and filled at the first call, which is not timed.
    first = functools.cache(functools.partial(start, params))
    return lambda: run(params, weights, first())

  return choice.Contest(
    f"Draft step of {rows} row{'s' if rows > 1 else ''}",
    runner("bfloat16", uses_step=True),
    runner("bfloat16"),
    runner("float32"),
  )
