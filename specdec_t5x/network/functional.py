"""Functions of a network and parameters, for drafters and loops."""

import dataclasses
import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, PRNGKeyArray

from specdec_t5x.core.types import ExtendFn
from specdec_t5x.network import config, heads, ngram, rounded, tracing
from specdec_t5x.network.config import GptConfig, T5Config
from specdec_t5x.network.gpt import GptTransformer
from specdec_t5x.network.heads import FeatureDrafter, HeadsConfig
from specdec_t5x.network.inputs import input_lengths, without_padding
from specdec_t5x.network.layers import BLANK
from specdec_t5x.network.ngram import NgramConfig, NgramTable
from specdec_t5x.network.transformer import Transformer

Network = Transformer | GptTransformer | NgramTable | FeatureDrafter
Settings = T5Config | GptConfig | NgramConfig | HeadsConfig
# Padding rows by which a draft's vocabulary may differ from the target's.
_MOST_PADDING = 1024
# The smallest encoded length. Shorter lengths save almost no time.
_LEAST_WIDTH = 16


def network_for(settings: Settings) -> Network:
  """Returns the network of a configuration."""
  if isinstance(settings, HeadsConfig):
    return heads.KINDS[settings.kind](settings)
  if isinstance(settings, NgramConfig):
    return NgramTable(settings)
  is_gpt = isinstance(settings, GptConfig)
  return GptTransformer(settings) if is_gpt else Transformer(settings)


def network_config(
  shapes: Mapping[str, tuple[int, ...]], dtype: str = "float32"
) -> Settings:
  """Returns the configuration of the network with parameters of these shapes.

  Args:
    shapes: shape of each parameter, by path.
    dtype: dtype of the activations.

  Raises:
    ValueError: if no network of this project has these parameters.
  """
  if "unigram" in shapes:
    return ngram.config_from_shapes(shapes)
  if heads.are_heads(shapes):
    return heads.config_from_shapes(shapes, dtype)
  return config.config_from_shapes(shapes, dtype)


@functools.partial(jax.jit, static_argnums=0)
def initial_variables(module: Network, key: PRNGKeyArray):
  """Returns the network's `params` and `params_axes`, with random parameters.

  The parameters have a checkpoint's form for any setting of `weights`.
  """
  return _initialised(module, {"params": key})


@functools.partial(jax.jit, static_argnums=0)
def blank_variables(module: Network):
  """Returns the variables of `initial_variables` as NaN, for a network to restore."""
  return _initialised(module, dict.fromkeys(("params", BLANK), jax.random.key(0)))


def _initialised(module: Network, keys: Mapping[str, PRNGKeyArray]):
  if isinstance(module.config, config.NetworkConfig):
    # The outputs are not used, and XLA's products trace faster.
    module = module.clone(config=dataclasses.replace(module.config, products="xla"))
  tokens = [jnp.ones((1, 1), jnp.int32)] * (2 if is_decoder_only(module) else 3)
  return module.init(keys, *tokens, enable_dropout=False)


def is_decoder_only(module: Network) -> bool:
  """Returns whether the network's inputs are prompts."""
  return isinstance(module, GptTransformer)


def lacks_encoder(module: Network) -> bool:
  """Returns whether the network is a draft that uses the target's encoder."""
  return isinstance(module, Transformer) and not module.config.num_encoder_layers


def check_same_kind(target: Network, draft: Network) -> None:
  """Raises a ValueError if a draft can't read the target's inputs."""
  kinds = type(target), type(draft)
  if set(kinds) == {Transformer, GptTransformer}:
    got = " and a ".join(kind.__name__ for kind in kinds)
    raise ValueError(
      "Target and draft must be two encoder-decoders or two decoder-only networks, got "
      f"a {got}. Use a draft of the target's kind."
    )
  if lacks_encoder(draft) and draft.config.emb_dim != target.config.emb_dim:
    raise ValueError(
      "A draft on the target's encoder must have the target's width "
      f"{target.config.emb_dim}, got width {draft.config.emb_dim}. Use a draft that "
      "was trained on the target."
    )


def check_same_vocabulary(target: Any, draft: Any, name: str) -> None:
  """Raises a ValueError if a draft's tokens are not the target's.

  Heads have a `vocab_size` only with hot tokens. Equal vocabularies may have different
  numbers of padding rows.
  """
  target_size = target.config.vocab_size
  draft_size = draft.config.vocab_size or target_size
  most = min(_MOST_PADDING, max(target_size, draft_size) // 16)
  if abs(target_size - draft_size) > most:
    raise ValueError(
      f"Target and {name} must share a vocabulary, but the target's vocab_size is "
      f"{target_size} and the {name}'s is {draft_size}. Use a {name} with the target's "
      f"vocabulary; padding rows may differ by up to {most}."
    )


def resized(logits: Float[Array, "*B W"], vocab_size: int) -> Float[Array, "*B V"]:
  """Returns a draft's logits over the target's tokens, if padding rows differ.

  Tokens beyond the target's rows are omitted, so the draft's distribution is
  renormalised over the target's tokens. Tokens without a row in the draft have q = 0.
  The target's distribution does not change.

  Args:
    logits: logits of the draft.
    vocab_size: vocabulary size of the target (V).
  """
  size = logits.shape[-1]
  if size >= vocab_size:
    return logits[..., :vocab_size]
  padding = [(0, 0)] * (logits.ndim - 1) + [(0, vocab_size - size)]
  return jnp.pad(logits, padding, constant_values=-jnp.inf)


def extend_fn(
  module: Network,
  params,
  without: Sequence[str] = (),
  taps: int = 1,
) -> ExtendFn:
  """Returns the network as a function of a cache and tokens.

  Args:
    module: the network.
    params: parameters of the network.
    without: names of sublayers to skip.
    taps: number of depths with features in the result.
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


def without_fn(module: Network, params) -> Callable[..., ExtendFn]:
  """Returns a function from names of sublayers to the network without the sublayers.

  The function also takes rounded matrices, which then replace the network's. The
  smaller network reads and writes the caches of the network.
  """

  def extend_without(names, made=None):
    used_params = rounded.within(params, made) if made else params
    return extend_fn(module, used_params, without=names)

  return extend_without


def logits_fn(module: Network, params) -> Callable[[Array], Array]:
  """Returns the network's projection of features [.., D] to logits [.., V]."""
  return lambda h: module.apply({"params": params}, h, method="logits")


def embed_fn(module: Network, params) -> Callable[[Array], Array]:
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
  """Reads each input and prompt once, and allocates the caches of a decode.

  Args:
    module: the network, which has `start` and `extend`.
    params: parameters of the network.
    inputs: inputs of the encoder, padded (`network.inputs`).
    num_slots: cache slots of a row, without the slots of the prompt.
    num_decodes: rows per input; the rows of an input are adjacent.
    prompts: prompts of the decoder, padded like the inputs; None for no prompts.
    readers: networks without an encoder that read the module's encoder, and the
      networks' parameters.

  Returns:
    The network's cache, and a cache for each reader. The network's cache holds the
    start token and the prompt without the last of these tokens, which the loop feeds.
    Without a prompt the cache is empty.
  """
  networks = [(module, params), *readers]
  for network, network_params in networks:
    rounded.check(network.config, network_params)
  size = 0 if prompts is None else prompts.shape[1]
  cache, *reader_caches = _read(networks, inputs, num_slots + size)
  if size:
    # The start token is 0, as in T5X's shift to the right.
    tokens = jnp.pad(without_padding(prompts), ((0, 0), (1, 0)))[:, :size]
    _, _, cache = extend_fn(module, params)(cache, tokens)
    # Slots after the end of a shorter prompt become stale.
    cache = cache.at(input_lengths(prompts))

  def repeat(x):
    return jnp.repeat(x, num_decodes, axis=0)

  return jax.tree.map(repeat, (cache, *reader_caches))


def encoder_widths(length: int) -> tuple[int, ...]:
  """Returns the lengths at which inputs are encoded: one to four quarters of `length`.

  Quarters below 16 are omitted.

  >>> encoder_widths(256), encoder_widths(40), encoder_widths(9)
  ((64, 128, 192, 256), (20, 30, 40), (9,))
  """
  parts = [length * quarters // 4 for quarters in (1, 2, 3)]
  return (*(part for part in parts if part >= _LEAST_WIDTH), length)


def _read(networks, inputs, num_slots):
  """Returns empty caches with the inputs, encoded once at the least length that fits.

  The first of the networks, which come with their parameters, encodes the inputs.
  """
  module, params = networks[0]
  length = inputs.shape[1]

  # `tracing` traces once, even if a queue starts several states.
  def start(encoded, inputs):
    call = functools.partial(tracing.apply, num_slots=num_slots)
    return [call(x, "start", {"params": y}, encoded, inputs) for x, y in networks]

  if not isinstance(module, Transformer):
    return start(None, inputs)

  def encode_and_start(width, inputs):
    inputs = inputs[:, :width]
    encoded = tracing.apply(
      module, "encode", {"params": params}, inputs, enable_dropout=False
    )
    return [cache.widened(length) for cache in start(encoded, inputs)]

  widths = encoder_widths(length)
  longest = input_lengths(inputs).max()
  starts = [functools.partial(encode_and_start, width) for width in widths]
  return jax.lax.switch((jnp.array(widths) < longest).sum(), starts, inputs)
