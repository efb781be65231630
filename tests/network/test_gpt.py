"""The decoder-only network: extend against teacher forcing, and against upstream's."""

import functools
import importlib

import flax
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from specdec_t5x.network import functional
from specdec_t5x.network.config import GptConfig, T5Config, config_from_shapes
from specdec_t5x.network.transformer import Transformer
from tests import networks

SHAPE = {
  "vocab_size": 40,
  "emb_dim": 16,
  "num_heads": 2,
  "head_dim": 8,
  "num_layers": 2,
  "mlp_dim": 24,
}
PLAIN = GptConfig(**SHAPE)
GATED = GptConfig(
  **SHAPE, mlp_activations=("gelu", "linear"), logits_via_embedding=True
)
CONFIGS = pytest.mark.parametrize("config", [PLAIN, GATED], ids=["plain", "gated"])
ROWS, SLOTS = 3, 20


@functools.cache
def network(config):
  """A random network and its variables."""
  module = functional.network_for(config)
  make = jax.jit(functools.partial(functional.initial_variables, module))
  return module, make(jax.random.key(0))


@functools.partial(jax.jit, static_argnames="config")
def forced(config, tokens, lengths):
  """Logits after each token, under teacher forcing of ragged rows."""
  module, variables = network(config)
  # Padding of the targets is what hides a row's end in T5X.
  is_known = jnp.arange(tokens.shape[1]) < lengths[:, None]
  return module.apply(
    {"params": variables["params"]}, tokens, 5 * is_known, enable_dropout=False
  )


def start(config, prompts=None, num_decodes=1):
  module, variables = network(config)
  inputs = jnp.zeros((ROWS, 0), jnp.int32) if prompts is None else prompts
  return networks.start(
    module, variables["params"], inputs, SLOTS, num_decodes, prompts
  )


def random_tokens(seed, count):
  rng = np.random.default_rng(seed)
  return jnp.asarray(rng.integers(2, 40, size=(ROWS, count)), jnp.int32)


@CONFIGS
def test_extend_equals_teacher_forcing_after_rollbacks_of_ragged_rows(config):
  rng = np.random.default_rng(1)
  extend, cache = start(config)
  known = np.zeros((ROWS, SLOTS), np.int32)
  for step, size in enumerate((4, 1, 4, 4, 1)):
    tokens = random_tokens(step, size)
    index = np.asarray(cache.index)
    rows = np.arange(ROWS)[:, None]
    known[rows, index[:, None] + np.arange(size)] = tokens
    logits, _, cache = extend(cache, tokens)
    expected = forced(config, jnp.asarray(known), cache.index)
    expected = expected[rows, index[:, None] + np.arange(size)]
    np.testing.assert_allclose(logits, expected, atol=1e-5)
    # Each row keeps a different share of the block; the rest goes stale.
    cache = cache.at(cache.index - jnp.asarray(rng.integers(0, size + 1, size=ROWS)))
  assert len(set(cache.index.tolist())) > 1


@CONFIGS
def test_a_tree_scores_each_of_its_paths(config):
  parents, depths = [None, 0, 0, 1, 2], jnp.array([0, 1, 1, 2, 2])
  tree = np.eye(5, dtype=bool)
  for node, parent in enumerate(parents):
    if parent is not None:
      tree[node] |= tree[parent]
  prefix, nodes = random_tokens(2, 4), random_tokens(3, 5)
  extend, cache = start(config)
  _, _, cache = extend(cache, prefix)
  logits, _, _ = extend(
    cache, nodes, cache.index[:, None] + depths, jnp.asarray([tree] * ROWS)
  )
  for path in (jnp.array([0, 1, 3]), jnp.array([0, 2, 4])):
    whole = jnp.concatenate([prefix, nodes[:, path]], axis=1)
    expected = forced(config, whole, jnp.full(ROWS, 7))[:, 4:]
    np.testing.assert_allclose(logits[:, path], expected, atol=1e-5)


def test_prompts_of_any_length_are_read_but_for_the_last_known_token():
  prompts = random_tokens(4, 6) * (jnp.arange(6) < jnp.array([[6], [2], [0]]))
  extend, cache = start(PLAIN, prompts, num_decodes=2)
  np.testing.assert_array_equal(cache.index, [6, 6, 2, 2, 0, 0])
  # The last known token: the prompt's, or the start token.
  last = [prompts[0, 5]] * 2 + [prompts[1, 1]] * 2 + [0, 0]
  logits, _, _ = extend(cache, jnp.asarray(last)[:, None])
  sequences = jnp.pad(prompts, ((0, 0), (1, 0)))
  lengths = jnp.array([7, 3, 1])
  expected = forced(PLAIN, sequences, lengths)[jnp.arange(ROWS), lengths - 1]
  np.testing.assert_allclose(logits[:, 0], jnp.repeat(expected, 2, axis=0), atol=1e-5)


def test_packed_examples_stay_apart():
  module, variables = network(PLAIN)
  tokens = random_tokens(5, 8)
  segments = jnp.array([[1] * 4 + [2] * 4] * ROWS)
  packed = module.apply(variables, tokens, tokens, segments, enable_dropout=False)
  alone = forced(PLAIN, tokens[:, 4:], jnp.full(ROWS, 4))
  np.testing.assert_allclose(packed[:, 4:], alone, atol=1e-5)


def test_a_prompt_that_sees_all_of_itself_is_refused():
  module, variables = network(PLAIN)
  tokens = random_tokens(6, 3)
  with pytest.raises(ValueError, match="causal in the prompt"):
    module.apply(variables, tokens, tokens, decoder_causal_attention=tokens)


def flat(tree):
  return flax.traverse_util.flatten_dict(flax.core.unfreeze(tree), sep="/")


@CONFIGS
def test_the_configuration_is_read_off_the_shapes(config):
  shapes = {k: v.shape for k, v in flat(network(config)[1]["params"]).items()}
  assert config_from_shapes(shapes) == config


def test_kinds_of_networks_do_not_mix():
  t5 = Transformer(T5Config(vocab_size=40))
  inputs = jnp.ones((1, 3), jnp.int32)
  gpt = functional.network_for(PLAIN)
  assert functional.prompts_of(inputs, gpt).shape == (1, 3)
  assert functional.prompts_of(inputs, t5).shape == (1, 0)
  with pytest.raises(ValueError, match="both decoder-only, got a GptTransformer and"):
    functional.check_same_kind(gpt, t5)


@CONFIGS
def test_parameters_axes_and_logits_are_upstreams(config):
  try:
    upstream = importlib.import_module("t5x.examples.decoder_only.network")
  except ImportError:
    pytest.skip("upstream T5X is not installed: nothing to compare with")
  known = upstream.TransformerConfig.__dataclass_fields__
  fields = {f: getattr(config, f) for f in known}
  theirs = upstream.DecoderWrapper(upstream.TransformerConfig(**fields))
  tokens = jnp.ones((1, 4), jnp.int32)
  expected = theirs.init(jax.random.key(0), tokens, tokens, enable_dropout=False)
  _, variables = network(config)
  shapes = lambda tree: {k: (v.shape, v.dtype) for k, v in flat(tree).items()}
  assert shapes(variables["params"]) == shapes(expected["params"])
  assert flat(variables["params_axes"]) == flat(expected["params_axes"])
  targets, lengths = random_tokens(9, 150), jnp.array([150, 7, 31])
  reference = theirs.apply(
    {"params": expected["params"]},
    targets,
    5 * (jnp.arange(150) < lengths[:, None]),
    enable_dropout=False,
  )
  ours = functional.network_for(config).apply(
    {"params": expected["params"]},
    targets,
    5 * (jnp.arange(150) < lengths[:, None]),
    enable_dropout=False,
  )
  for row, length in enumerate(lengths):
    np.testing.assert_allclose(ours[row, :length], reference[row, :length], atol=1e-5)
