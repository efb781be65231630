"""A network and its parameters as the functions that drafters and loops call."""

import dataclasses
import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, PRNGKeyArray

from specdec_t5x import moved
from specdec_t5x.core.types import ExtendFn
from specdec_t5x.network import config, heads, ngram, rounded, tracing
from specdec_t5x.network.config import GptConfig, T5Config
from specdec_t5x.network.gemma import GemmaConfig
from specdec_t5x.network.gpt import GptTransformer
from specdec_t5x.network.heads import FeatureDrafter, HeadsConfig
from specdec_t5x.network.inputs import input_lengths, without_padding
from specdec_t5x.network.ngram import NgramConfig, NgramTable
from specdec_t5x.network.transformer import Transformer
from specdec_t5x.network.vocabulary import vocab_size_of

Network = Transformer | GptTransformer | NgramTable | FeatureDrafter
Settings = T5Config | GptConfig | NgramConfig | HeadsConfig
LogitsFn = Callable[[Float[Array, "*B D"]], Float[Array, "*B V"]]
EmbedFn = Callable[[Int[Array, "*B"]], Float[Array, "*B D"]]
WithoutFn = Callable[..., ExtendFn]
# Inputs are not encoded at less than this: narrower gains next to nothing.
_LEAST_WIDTH = 16


def network_for(settings: Settings) -> Network:
  """Returns the network that has this configuration."""
  if isinstance(settings, HeadsConfig):
    return heads.KINDS[settings.kind](settings)
  kinds = {
    T5Config: Transformer,
    GemmaConfig: Transformer,
    GptConfig: GptTransformer,
    NgramConfig: NgramTable,
  }
  return kinds[type(settings)](settings)


def network_config(
  shapes: Mapping[str, tuple[int, ...]], dtype: str = "float32"
) -> Settings:
  """Returns the configuration of whatever has parameters of these shapes.

  Args:
    shapes: of each parameter by its path.
    dtype: of a network's activations.

  Raises:
    ValueError: where no network of this project has such parameters.
  """
  if ngram.is_table(shapes):
    return ngram.config_from_shapes(shapes)
  if heads.are_heads(shapes):
    return heads.config_from_shapes(shapes, dtype)
  return config.config_from_shapes(shapes, dtype)


@functools.partial(jax.jit, static_argnums=0)
def initial_variables(module: Network, key: PRNGKeyArray):
  """Returns the network's `params` and `params_axes`, the parameters at random.

  As a checkpoint has them, whatever the network's weights.
  """
  tokens = [jnp.ones((1, 1), jnp.int32)] * (2 if is_decoder_only(module) else 3)
  return module.init(key, *tokens, enable_dropout=False)


def is_decoder_only(module: Network) -> bool:
  """Returns whether the network's inputs are prompts."""
  return isinstance(module, GptTransformer)


def lacks_encoder(module: Network) -> bool:
  """Returns whether the network is a draft on its target's encoder."""
  return isinstance(module, Transformer) and not module.config.num_encoder_layers


def check_same_kind(target: Network, draft: Network) -> None:
  """Raises a ValueError where a draft can't read what its target reads."""
  kinds = type(target), type(draft)
  if set(kinds) == {Transformer, GptTransformer}:
    got = " and a ".join(kind.__name__ for kind in kinds)
    raise ValueError(
      "Target and draft must both be encoder-decoders or both decoder-only, got a "
      f"{got}. Use a draft of the target's kind."
    )
  if lacks_encoder(draft) and draft.config.emb_dim != target.config.emb_dim:
    raise ValueError(
      "A draft on its target's encoder has the target's width "
      f"{target.config.emb_dim}, got one of width {draft.config.emb_dim}. Use the one "
      "that was trained on this target."
    )


def resized(
  logits: Float[Array, "*B W"], vocab_size: int, missing: float = -jnp.inf
) -> Float[Array, "*B V"]:
  """Returns a draft's logits over the target's tokens, whose padding rows differ.

  Tokens beyond the target's rows are left out, so the draft's distribution is
  renormalised over the others. The target's distribution stays as it is.

  Args:
    logits: the draft's.
    vocab_size: V, the target's.
    missing: the logit of tokens that the draft has no row for: q = 0 by default.
  """
  size = logits.shape[-1]
  if size >= vocab_size:
    return logits[..., :vocab_size]
  padding = [(0, 0)] * (logits.ndim - 1) + [(0, vocab_size - size)]
  return jnp.pad(logits, padding, constant_values=missing)


def resized_extend_fn(module: Network, extend: ExtendFn, vocab_size: int) -> ExtendFn:
  """Returns a draft's `extend` over the target's tokens.

  Tokens that the draft has no row for are read as its last row.
  """
  if vocab_size_of(module, vocab_size) == vocab_size:
    return extend

  def extend_resized(*args, **words):
    logits, features, cache = extend(*args, **words)
    return resized(logits, vocab_size), features, cache

  return extend_resized


def first_layers(module: Network, params) -> tuple[Network, Any]:
  """Returns a network of one layer a stack, with the parameters of the first layers."""
  if isinstance(module.config, GptConfig):
    counts = {"num_layers": 1}
  elif isinstance(module.config, T5Config):
    encoders = min(module.config.num_encoder_layers, 1)
    counts = {"num_encoder_layers": encoders, "num_decoder_layers": 1}
  else:
    return module, params

  def is_kept(name):
    return not name.startswith("layers_") or name == "layers_0"

  kept = {
    part: {name: x for name, x in params[part].items() if is_kept(name)}
    for part in params
  }
  return network_for(dataclasses.replace(module.config, **counts)), kept


def prompts_of(inputs: Int[Array, "B I"], target: Network) -> Int[Array, "B P"]:
  """Returns what of the inputs stands before the output: all where there is no encoder.

  Args:
    inputs: what the encoder reads, or a decoder-only network's prompts, padded
      (`network.inputs`).
    target: the network that decodes.
  """
  return inputs if is_decoder_only(target) else inputs[:, :0]


def extend_fn(
  module: Network,
  params,
  without: Sequence[str] = (),
  taps: int = 1,
) -> ExtendFn:
  """Returns the network as a function of its cache and tokens.

  Args:
    module: the network.
    params: its parameters.
    without: names of sublayers that are left out.
    taps: depths whose features it gives side by side.
  """
  variables = {"params": params}
  settings = {"without": tuple(without)} if without else {}
  if taps > 1:
    settings["taps"] = taps

  def extend(cache, tokens, positions=None, tree=None):
    return tracing.apply(
      module, "extend", variables, cache, tokens, positions, tree, **settings
    )

  return extend


def without_fn(module: Network, params) -> WithoutFn:
  """Returns what makes, of sublayers' names, the network without these.

  Given rounded matrices, too, it multiplies by these. It reads and writes the network's
  own caches.
  """
  return lambda names, made=None: extend_fn(
    module, rounded.within(params, made) if made else params, without=names
  )


def logits_fn(module: Network, params) -> LogitsFn:
  """Returns the network's projection of features [.., D] to logits [.., V]."""
  return lambda h: module.apply({"params": params}, h, method="logits")


def embed_fn(module: Network, params) -> EmbedFn:
  """Returns the network's embedding of tokens [..] as [.., D]."""
  return lambda tokens: module.apply({"params": params}, tokens, method="embed")


def start_decoding(
  module,
  params,
  inputs: Int[Array, "B I"],
  num_slots: int,
  num_decodes: int = 1,
  prompts: Int[Array, "B P"] | None = None,
  readers: Sequence[tuple[Network, Any]] = (),
) -> tuple[Any, ...]:
  """Reads each input once, its prompt too, and makes room to decode from them.

  Args:
    module: the network; it has `encode`, `start` and `extend`.
    params: its parameters.
    inputs: what its encoder reads, padded (`network.inputs`).
    num_slots: cache slots of a row, besides those of its prompt.
    num_decodes: rows an input; they stand next to each other.
    prompts: what stands before the output, padded likewise; None is nothing.
    readers: networks that lack an encoder and read this one's, and their parameters.

  Returns:
    The network as an `ExtendFn`, and a cache that holds the start token and the prompt
    but for the last of these tokens, which the loop feeds: an empty one without prompt.
    And a cache of each reader's.
  """
  networks = [(module, params), *readers]
  for each, own in networks:
    rounded.check(each.config, own)
  extend = extend_fn(module, params)
  size = 0 if prompts is None else prompts.shape[1]
  cache, *others = _read(networks, inputs, num_slots + size)
  if size:
    # The start token is 0, as T5X's shift to the right makes it.
    _, _, cache = extend(
      cache, jnp.pad(without_padding(prompts), ((0, 0), (1, 0)))[:, :size]
    )
    # What shorter prompts wrote beyond their ends is stale from here on.
    cache = cache.at(input_lengths(prompts))
  repeat = lambda x: jnp.repeat(x, num_decodes, axis=0)
  return extend, *jax.tree.map(repeat, (cache, *others))


def encoder_widths(length: int) -> tuple[int, ...]:
  """Returns the widths that inputs are encoded at: one to four quarters of the whole.

  >>> encoder_widths(256), encoder_widths(40), encoder_widths(9)
  ((64, 128, 192, 256), (20, 30, 40), (9,))
  """
  parts = [length * quarters // 4 for quarters in (1, 2, 3)]
  return (*(part for part in parts if part >= _LEAST_WIDTH), length)


def _read(networks, inputs, num_slots):
  """Returns empty caches that know the inputs, encoded once, as wide as they need.

  Args:
    networks: with their parameters; the first one's encoder reads.
    inputs: what it reads.
    num_slots: of each cache.
  """
  module, params = networks[0]

  def start(width, inputs):
    # Traced once, though a queue asks for first states several times.
    inputs = inputs[:, :width]
    encoded = tracing.apply(
      module, "encode", {"params": params}, inputs, enable_dropout=False
    )
    return [
      tracing.apply(
        each, "start", {"params": own}, encoded, inputs, num_slots=num_slots
      )
      for each, own in networks
    ]

  length = inputs.shape[1]
  if not isinstance(module, Transformer):
    return start(length, inputs)
  widths = encoder_widths(length)
  longest = input_lengths(inputs).max()
  wide = lambda width, x: [cache.widened(length) for cache in start(width, x)]
  starts = [functools.partial(wide, width) for width in widths]
  return jax.lax.switch((jnp.array(widths) < longest).sum(), starts, inputs)


__getattr__ = moved.names_of(__name__)
