"""Networks with random parameters, in compiled parts, because every op is a program."""

import dataclasses

import flax
import jax
import jax.numpy as jnp
import numpy as np

from specdec_t5x.core.distributions import GREEDY
from specdec_t5x.decoding.state import row_keys
from specdec_t5x.network.functional import (
  initial_variables,
  network_for,
  start_decoding,
)
from specdec_t5x.ways import assembled


def drawn(config, seed=0):
  """Returns parameters; T5Gemma's give varied greedy outputs without padding."""
  initial = initial_variables(network_for(config), jax.random.key(seed))["params"]
  if getattr(config, "is_gemma", None) is False:
    return initial
  draw = np.random.default_rng(seed).normal

  def draw_leaf(path, x):
    by_name = {"scale": 0.8, "embedding": 0.1}.get(path[-1].key)
    leaf = jnp.asarray(draw(size=x.shape), x.dtype) * by_name if by_name else 2 * x
    return leaf.at[0].set(0) if path[0].key == "token_embedder" else leaf

  return jax.tree_util.tree_map_with_path(draw_leaf, flax.core.unfreeze(initial))


def sharp(network, seed=0):
  """Returns random parameters with sharper distributions than the initializer's."""

  @jax.jit
  def draw(key):
    return jax.tree.map(lambda x: 2 * x, initial_variables(network, key)["params"])

  return draw(jax.random.key(seed))


def initialize(module, inputs, seed=0):
  init = jax.jit(lambda key: module.init(key, *[inputs] * 3, enable_dropout=False))
  return init(jax.random.key(seed))


def forced(inputs, tokens):
  """Returns a batch that feeds each token to the prediction of the next token."""
  return {
    "encoder_input_tokens": inputs,
    "decoder_input_tokens": jnp.pad(tokens, ((0, 0), (1, 0)))[:, :-1],
    "decoder_target_tokens": tokens,
  }


def start(module, params, *args, **kwargs):
  """Starts decoding like `start_decoding`, with compiled functions."""

  def extend(cache, tokens, *tree):
    return module.apply({"params": params}, cache, tokens, *tree, method="extend")

  def begin(params):
    return start_decoding(module, params, *args, **kwargs)[0]

  return jax.jit(extend), jax.jit(begin)(params)


def decode(target, *drafts, inputs, room, sampling=GREEDY, eos_id=1, slots=0, **words):
  """Decodes the inputs with the models and words of `assembled`."""
  decoder, params = assembled(target, *drafts, **words)
  decoder = dataclasses.replace(decoder, slots=slots)
  return run(decoder, params, inputs, room, sampling, eos_id)


def prepare(decoder, params, inputs, keys, sampling, room, eos_id):
  """Returns how to decode, and the first state."""
  ctx = decoder.context(params, len(keys), sampling, room, eos_id)
  return ctx, ctx.first_state(inputs, keys)


def run(decoder, params, inputs, room, sampling=GREEDY, eos_id=1, per_input=1):
  """Decodes the inputs with a compiled decoder."""
  keys = row_keys(jax.random.key(0), per_input * len(inputs))

  @jax.jit
  def decode(params):
    return decoder.decode(params, inputs, keys, sampling, room, eos_id)

  return decode(params)
