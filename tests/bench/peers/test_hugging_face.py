"""Hugging Face's T5 with our weights gives our outputs."""

import dataclasses
import importlib

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from specdec_t5x import api, build
from specdec_t5x.core.distributions import GREEDY
from specdec_t5x.decoding.state import row_keys
from specdec_t5x.network.config import T5Config
from specdec_t5x.network.transformer import Transformer
from tests import networks

for module in ("torch", "transformers"):
  pytest.importorskip(module, reason="the extra `peers` is not installed")
export, hugging_face = (
  importlib.import_module(f"specdec_t5x.bench.peers.{name}")
  for name in ("export", "hugging_face")
)

SHAPE = {
  "vocab_size": 40,
  "emb_dim": 16,
  "num_heads": 2,
  "num_encoder_layers": 1,
  "num_decoder_layers": 3,  # More than the encoder's: generate() makes fewer caches.
  "head_dim": 8,
  "mlp_dim": 24,
}
KINDS = {
  "t5_1_1": T5Config(**SHAPE, mlp_activations=("gelu", "linear")),
  "t5_1_0": T5Config(**SHAPE, mlp_activations=("relu",), logits_via_embedding=True),
}
# Longer than 128, beyond which all distances share a bucket.
INPUTS = np.random.default_rng(0).integers(2, 40, size=(1, 150))
LENGTH, GAMMA = 24, 3


def random_params(config, seed=0):
  tokens = jnp.ones((1, 4), jnp.int32)
  return networks.initialize(Transformer(config), tokens, seed)["params"]


@pytest.fixture(scope="module", params=list(KINDS.values()), ids=list(KINDS))
def pair(request):
  """A target and a draft that agrees with it at times, in each kind of T5."""
  params = random_params(request.param)
  rng = np.random.default_rng(1)
  noisy = lambda x: x * (1 + 0.1 * rng.normal(size=x.shape).astype(np.float32))
  network = Transformer(request.param)
  return api.Model(network, params), api.Model(network, jax.tree.map(noisy, params))


def ours(target, draft, inputs, eos_id):
  network, params = build.together(target, draft, gamma=draft and GAMMA)
  run = api.compiled(network, GREEDY, LENGTH, eos_id)
  return run(params, jnp.asarray(inputs, jnp.int32), row_keys(jax.random.key(0), 1))


def until_end(tokens, eos_id):
  tokens = np.asarray(tokens)[0].tolist()
  return tokens[: tokens.index(eos_id) + 1] if eos_id in tokens else tokens


@pytest.mark.parametrize("ends", [False, True])
def test_outputs_are_ours(pair, ends):
  target, draft = pair
  plain = ours(target, None, INPUTS, -1)
  # A token that ends the output somewhere inside it, or nothing does.
  eos_id = int(plain.tokens[0, LENGTH // 2]) if ends else -1
  expected = until_end(plain.tokens, eos_id)
  assert (len(expected) < LENGTH) == ends
  speculative = ours(target, draft, INPUTS, eos_id)
  assert until_end(speculative.tokens, eos_id) == expected
  theirs = export.to_torch(target)
  programs = [hugging_face.plain(theirs, LENGTH, eos_id)] + [
    hugging_face.assisted(theirs, export.to_torch(draft), LENGTH, eos_id, gamma, mask)
    for gamma, mask in ((GAMMA, True), (None, True), (GAMMA, False))
  ]
  for program in programs:
    output = program(np.pad(INPUTS, ((0, 0), (0, 5))))
    assert output.tolist() == [expected]


def test_an_assistant_drafts_gamma_tokens(pair):
  target, _ = pair
  theirs, assistant = export.to_torch(target), export.to_torch(target)
  calls, drafted = [], []
  theirs.register_forward_hook(lambda *_: calls.append(1))
  assistant.register_forward_hook(lambda *_: drafted.append(1))
  program = hugging_face.assisted(theirs, assistant, LENGTH, None, GAMMA)
  expected = np.asarray(ours(target, None, INPUTS, -1).tokens)
  np.testing.assert_array_equal(program(INPUTS), expected)
  # It says what the target says: each call keeps all of its draft, and adds a token.
  assert len(calls) == LENGTH / (GAMMA + 1)
  assert len(drafted) == GAMMA * len(calls)


def test_other_dtypes_are_refused():
  config = dataclasses.replace(KINDS["t5_1_1"], dtype="bfloat16")
  with pytest.raises(ValueError, match="float32, got a network in 'bfloat16'"):
    export.to_torch(api.Model(Transformer(config), {}))
