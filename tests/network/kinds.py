"""Small networks of every kind with random parameters and teacher-forced logits."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from specdec_t5x.network.config import GptConfig, T5Config
from specdec_t5x.network.functional import is_decoder_only, network_for
from specdec_t5x.network.gemma import GemmaConfig
from specdec_t5x.ways import Model
from tests import networks
from tests.training.conftest import params_of, shapes_of

SHAPE = {"vocab_size": 40, "emb_dim": 16, "num_heads": 2, "head_dim": 8, "mlp_dim": 24}
T5 = {**SHAPE, "num_encoder_layers": 2, "num_decoder_layers": 2}
T5_1_1 = T5Config(**T5, mlp_activations=("gelu", "linear"))
T5_1_0 = T5Config(**T5, mlp_activations=("relu",), logits_via_embedding=True)
GPT = GptConfig(**SHAPE, num_layers=2)
GATED_GPT = dataclasses.replace(
  GPT, mlp_activations=("gelu", "linear"), logits_via_embedding=True
)
# Inputs and outputs are longer than the window of 3.
GEMMA_2 = GemmaConfig(
  **{**SHAPE, "num_heads": 4, "num_kv_heads": 2, "window": 3},
  **{"num_encoder_layers": 2, "num_decoder_layers": 3},
  **{"full_theta": 1e6, "full_factor": 8.0, "query_scalar": 8},
)
GEMMA_1 = dataclasses.replace(
  GEMMA_2,
  **{"merged": False, "attention_cap": 2.0, "logits_cap": 3.0},
  encoder=dataclasses.replace(GEMMA_2, emb_dim=24, num_heads=2, num_kv_heads=1),
)
OLD = {"t5 1.1": T5_1_1, "t5 1.0": T5_1_0, "gpt": GPT, "gated gpt": GATED_GPT}
GEMMAS = {
  "gemma 2": GEMMA_2,
  "gemma 1": pytest.param(GEMMA_1, marks=pytest.mark.slow),
}


def each(configs):
  """Returns a mark that parametrizes a test by configurations."""
  return pytest.mark.parametrize("config", configs.values(), ids=configs)


ROWS = 3
SLOTS = 20
INPUTS = jnp.asarray(np.random.default_rng(0).integers(2, 40, (ROWS, 12)))
INPUTS = INPUTS * (jnp.arange(12) < jnp.array([[12], [7], [3]]))


@functools.cache
def variables(config):
  """Returns random parameters and axes; a T5Gemma has no axes here."""
  if config.is_gemma:
    return {"params": networks.drawn(config)}
  network = network_for(config)
  return {**shapes_of(network), "params": params_of(network)}


def model(config):
  return Model(network_for(config), variables(config)["params"])


def forced(config, tokens):
  """Returns teacher-forced logits; tokens are padded to share a compiled program."""
  size = tokens.shape[1]
  tokens = jnp.pad(tokens, ((0, 0), (0, SLOTS - size)))
  return _forced(config, variables(config)["params"], tokens)[:, :size]


@functools.partial(jax.jit, static_argnames="config")
def _forced(config, params, tokens):
  network = network_for(config)
  mask = jnp.ones_like(tokens)
  inputs = () if is_decoder_only(network) else (INPUTS,)
  return network.apply({"params": params}, *inputs, tokens, mask, enable_dropout=False)


@functools.cache
def start(config):
  """Returns `extend` and a cache; an encoder reads INPUTS."""
  network = network_for(config)
  inputs = INPUTS[:, :0] if is_decoder_only(network) else INPUTS
  return networks.start(network, variables(config)["params"], inputs, SLOTS)


def random_tokens(seed, count):
  """Returns random tokens with 0s; 0 is the start token only at the first position."""
  draw = np.random.default_rng(seed).integers
  return jnp.asarray(draw(0, 40, (ROWS, count)), jnp.int32)
