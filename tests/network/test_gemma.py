"""T5Gemma's networks: extend against teacher forcing, and every drafter against none.

That their numbers are transformers' is tests/hugging_face/test_parity.py's.
"""

import dataclasses
import functools

import flax
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from specdec_t5x import api, build
from specdec_t5x.beam.decoder import BeamDecoder
from specdec_t5x.checkpoints.parameters import T5XParameters
from specdec_t5x.core.distributions import GREEDY
from specdec_t5x.core.tree import Tree
from specdec_t5x.decoding.state import row_keys
from specdec_t5x.drafters.layer_skip import LayerSkip
from specdec_t5x.drafters.quantized import Quantized
from specdec_t5x.drafters.tree_draft import TreeDraft
from specdec_t5x.hugging_face import export
from specdec_t5x.network.config import config_from_shapes
from specdec_t5x.network.functional import network_for
from specdec_t5x.network.gemma import GemmaConfig
from specdec_t5x.network.heads import HeadsConfig
from specdec_t5x.network.parallel import ParallelConfig
from specdec_t5x.training.new_heads import new_heads
from tests import networks

# A window of 3 that inputs and outputs outgrow.
SECOND = GemmaConfig(
  **{"vocab_size": 40, "emb_dim": 16, "num_heads": 4, "num_kv_heads": 2, "head_dim": 8},
  **{"mlp_dim": 24, "num_encoder_layers": 2, "num_decoder_layers": 3, "window": 3},
  **{"full_theta": 1e6, "full_factor": 8.0, "query_scalar": 8},
)
FIRST = dataclasses.replace(
  SECOND,
  **{"merged": False, "attention_cap": 2.0, "logits_cap": 3.0},
  encoder=dataclasses.replace(SECOND, emb_dim=24, num_heads=2, num_kv_heads=1),
)
CONFIGS = pytest.mark.parametrize(
  "config", [SECOND, pytest.param(FIRST, marks=pytest.mark.slow)], ids=["2", "1"]
)
ROWS, SLOTS, LENGTH = 3, 20, 16
INPUTS = jnp.asarray(np.random.default_rng(0).integers(2, 40, (ROWS, 12)))
INPUTS = INPUTS * (jnp.arange(12) < jnp.array([[12], [7], [3]]))


@functools.cache
def model(config, seed=0):
  return build.Model(network_for(config), networks.drawn(config, seed))


def forced(config, tokens):
  """Logits after each token."""
  return _forced(config, model(config).params, tokens)


@functools.partial(jax.jit, static_argnames="config")
def _forced(config, params, tokens):
  known = {"params": params}, INPUTS, tokens, jnp.ones_like(tokens)
  return network_for(config).apply(*known, enable_dropout=False)


def start(config):
  return networks.start(network_for(config), model(config).params, INPUTS, SLOTS)


def random_tokens(seed, count):
  draw = np.random.default_rng(seed).integers
  return jnp.asarray(draw(0, 40, (ROWS, count)), jnp.int32)


@CONFIGS
def test_extend_equals_teacher_forcing_after_rollbacks_of_ragged_rows(config):
  """Tokens of 0 among them: only where a sequence begins are they the start token."""
  rng = np.random.default_rng(1)
  extend, cache = start(config)
  known, rows = np.zeros((ROWS, SLOTS), np.int32), np.arange(ROWS)[:, None]
  for step, size in enumerate((4, 1, 4, 4, 1)):
    tokens = random_tokens(step, size)
    places = np.asarray(cache.index)[:, None] + np.arange(size)
    known[rows, places] = tokens
    logits, _, cache = extend(cache, tokens)
    expected = forced(config, jnp.asarray(known))[rows, places]
    np.testing.assert_allclose(logits, expected, atol=1e-5)
    cache = cache.at(cache.index - jnp.asarray(rng.integers(0, size + 1, size=ROWS)))
  assert len(set(cache.index.tolist())) > 1


@CONFIGS
def test_a_tree_scores_each_of_its_paths(config):
  tree = Tree((0, 0, 1, 2))
  prefix, nodes = random_tokens(2, 4), random_tokens(3, 5)
  extend, cache = start(config)
  _, _, cache = extend(cache, prefix)
  sees = jnp.asarray([tree.sees] * ROWS)
  positions = cache.index[:, None] + jnp.asarray(tree.depths)
  logits, _, _ = extend(cache, nodes, positions, sees)
  for path in (jnp.array([0, 1, 3]), jnp.array([0, 2, 4])):
    expected = forced(config, jnp.concatenate([prefix, nodes[:, path]], axis=1))[:, 4:]
    np.testing.assert_allclose(logits[:, path], expected, atol=1e-5)


def test_what_0_stands_for_and_how_far_layers_see_show():
  """Else the tests above would not notice them."""
  tokens = random_tokens(4, 8).at[:, 0].set(0)
  whole = forced(SECOND, tokens)
  assert abs(whole - forced(SECOND, tokens.at[:, 0].set(7))).max() > 0.1
  np.testing.assert_array_equal(whole, forced(SECOND, tokens.at[:, 0].set(2)))
  for other in ({"window": 9}, {"full_factor": 1.0}, {"query_scalar": 9}):
    network = network_for(dataclasses.replace(SECOND, **other))
    known = {"params": model(SECOND).params}, INPUTS, tokens, jnp.ones_like(tokens)
    found = jax.jit(lambda *args, n=network: n.apply(*args, enable_dropout=False))
    assert abs(whole - found(*known)).max() > 1e-3, other


def outputs(target, *draft, **how):
  decoder, params = build.together(target, *draft, **how)
  run = api.compiled(decoder, GREEDY, LENGTH, -1)
  decoded = run(params, INPUTS, row_keys(jax.random.key(0), ROWS))
  return decoded.tokens.tolist(), int(decoded.statistics.accepted.sum())


def drafts(config):
  less = dataclasses.replace(config, num_decoder_layers=1)
  heads = HeadsConfig("hydra", 2, config.emb_dim, 1)
  return {
    "itself": (model(config),),
    "another": (model(less, 1), "draft_model"),
    "a tree": (model(less, 1), TreeDraft(network_for(less), Tree((0, 0, 1, 2)))),
    "heads": (model(heads, 1),),
    "4 bits": (None, Quantized(4, 8, gamma=3)),
    "fewer layers": (None, LayerSkip(("self_0", "mlp_1"), 3)),
    "copies": ("copy",),
  }


@pytest.mark.parametrize(
  ("config", "name"),
  [
    (SECOND, "4 bits"),
    *(
      pytest.param(*given, marks=pytest.mark.slow)
      for given in (
        (SECOND, "itself"),
        (FIRST, "another"),
        (SECOND, "a tree"),
        (FIRST, "a tree"),
        (SECOND, "heads"),
        (FIRST, "4 bits"),
        (SECOND, "fewer layers"),
        (FIRST, "copies"),
      )
    ),
  ],
)
def test_every_drafter_leaves_greedy_outputs_as_they_are(config, name):
  plain, _ = outputs(model(config))
  assert len(np.unique(plain)) > 4
  rule = "traversal" if name == "a tree" else "token"
  *given, drafter = (*drafts(config)[name], None)[:2]
  found, accepted = outputs(model(config), *given, drafter, rule, policy="fixed")
  assert found == plain
  assert accepted or name in ("another", "a tree", "heads", "copies")


@pytest.mark.slow
@pytest.mark.parametrize("config", [SECOND], ids=["2"])
def test_a_beam_with_a_draft_is_the_beam_without(config):
  """And its scores are those of teacher forcing, over the brevity penalty."""
  network, params, width, end = network_for(config), model(config).params, 3, 8
  keys = row_keys(jax.random.key(0), ROWS * width)
  found = []
  for names in (("target",), ("target", "draft")):
    decoder = BeamDecoder(**dict.fromkeys(names, network), draft_beam_size=4)
    run = api.compiled(decoder, GREEDY, LENGTH, end)
    found.append(run(dict.fromkeys(names, params), INPUTS, keys))
  plain, drafted = found
  assert plain.tokens.tolist() == drafted.tokens.tolist()
  assert drafted.statistics.target_calls.sum() < plain.statistics.target_calls.sum()
  best = plain.tokens[width - 1 :: width]
  ends, lengths = (best == end).any(axis=1), (best > 0).sum(axis=1)
  assert ends.any()
  probs = jax.nn.log_softmax(forced(config, jnp.pad(best, ((0, 0), (1, 0)))[:, :-1]))
  each = jnp.take_along_axis(probs, best[..., None], axis=2)[..., 0]
  totals = jnp.where(best > 0, each, 0).sum(axis=1)
  expected = totals / jnp.where(ends, ((5 + lengths) / 6) ** 0.6, 1)
  np.testing.assert_allclose(plain.scores[width - 1 :: width], expected, atol=1e-4)


@pytest.mark.slow
@CONFIGS
def test_a_checkpoint_needs_the_configuration(config, tmp_path):
  own = model(config)
  T5XParameters(own.network, str(tmp_path)).save(0, own.params)
  path = str(tmp_path / "checkpoint_0")
  read = api.load_model(path, config=config)
  read = flax.core.unfreeze(read.params)
  same = jax.tree.map(lambda a, b: (a == b).all(), read, own.params)
  assert jax.tree.all(same)


def test_what_no_gemma_is_is_refused(tmp_path):
  bad = [
    ({"layer_types": ("sliding", "chunked")}, "layer_types must be names among"),
    ({"num_kv_heads": 3}, "num_heads that num_kv_heads divides"),
    ({"encoder": FIRST.encoder}, "have one width, got emb_dim=24 and 16"),
  ]
  for settings, says in bad:
    with pytest.raises(ValueError, match=says):
      dataclasses.replace(SECOND, **settings)
  with pytest.raises(ValueError, match="layer is a T5's, got a T5Gemma"):
    ParallelConfig.of(SECOND, 2)
  export.write(str(tmp_path), SECOND, model(SECOND).params)
  with pytest.raises(ValueError, match="encoder is a T5's, got a T5Gemma"):
    new_heads(str(tmp_path), "shared_encoder", 2, 1)
  with pytest.raises(ValueError, match="no shape tells"):
    config_from_shapes({"decoder/layers_0/post_mlp_layer_norm/scale": (8,)})
