"""Hugging Face's T5 with our weights gives our logits and our outputs."""

import dataclasses
import importlib

import flax
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


def exported(model):
  return export.to_torch(model.network.config, model.params)


def ours(target, draft, inputs, eos_id):
  network, params = build.together(target, draft, gamma=draft and GAMMA)
  run = api.compiled(network, GREEDY, LENGTH, eos_id)
  return run(params, jnp.asarray(inputs, jnp.int32), row_keys(jax.random.key(0), 1))


def until_end(tokens, eos_id):
  tokens = np.asarray(tokens)[0].tolist()
  return tokens[: tokens.index(eos_id) + 1] if eos_id in tokens else tokens


def test_logits_are_ours(pair):
  target, _ = pair
  fed = np.random.default_rng(2).integers(2, 40, size=(1, 140))
  fed[0, 0] = 0
  inputs = np.pad(INPUTS, ((0, 0), (0, 5)))
  expected = target.network.apply(
    {"params": target.params},
    *(jnp.asarray(x, jnp.int32) for x in (inputs, fed)),
    jnp.ones_like(fed),
    enable_dropout=False,
  )
  logits = hugging_face.logits(exported(target), inputs, fed)
  np.testing.assert_allclose(logits, expected, atol=1e-4)


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
  theirs = exported(target)
  programs = [hugging_face.plain(theirs, LENGTH, eos_id)] + [
    hugging_face.assisted(theirs, exported(draft), LENGTH, eos_id, gamma, mask)
    for gamma, mask in ((GAMMA, True), (None, True), (GAMMA, False))
  ]
  for program in programs:
    output = program(np.pad(INPUTS, ((0, 0), (0, 5))))
    assert output.tolist() == [expected]


def test_an_assistant_drafts_gamma_tokens(pair):
  target, _ = pair
  theirs, assistant, calls, drafted = exported(target), exported(target), [], []
  theirs.register_forward_hook(lambda *_: calls.append(1))
  assistant.register_forward_hook(lambda *_: drafted.append(1))
  program = hugging_face.assisted(theirs, assistant, LENGTH, None, GAMMA)
  expected = np.asarray(ours(target, None, INPUTS, -1).tokens)
  np.testing.assert_array_equal(program(INPUTS), expected)
  # It says what the target says: each call keeps all of its draft, and adds a token.
  assert len(calls) == LENGTH / (GAMMA + 1)
  assert len(drafted) == GAMMA * len(calls)


def test_every_parameter_is_set_once(pair):
  target, _ = pair
  config = target.network.config
  flat = flax.traverse_util.flatten_dict(target.params)
  more = {**flat, ("decoder", "layers_3", "mlp", "wo", "kernel"): np.zeros((24, 16))}
  less = {k: v for k, v in flat.items() if k[-2:] != ("encoder_norm", "scale")}
  other = {**flat, ("decoder", "pooler", "kernel"): np.zeros((16, 16))}
  unlike = {**flat, ("token_embedder", "embedding"): np.zeros((1, 16))}
  cases = [(more, "be set once"), (less, "final_layer_norm"), (other, "Unknown")]
  for tree, message in [*cases, (unlike, "expected .40, 16.")]:
    with pytest.raises(ValueError, match=message):
      export.to_torch(config, flax.traverse_util.unflatten_dict(tree))


def test_networks_without_a_counterpart_are_refused():
  config = dataclasses.replace(KINDS["t5_1_1"], mlp_activations=("silu", "linear"))
  for bad in (config, dataclasses.replace(KINDS["t5_1_1"], dtype="bfloat16")):
    with pytest.raises(ValueError, match="Expected mlp_activations"):
      export.to_torch(bad, {})
