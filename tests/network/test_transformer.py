"""Scoring a block against the cache equals scoring token by token."""

import importlib

import flax
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from specdec_t5x.network.config import T5Config
from specdec_t5x.network.layers import Embed
from specdec_t5x.network.transformer import Transformer
from tests import networks

SHAPE = {
  "vocab_size": 40,
  "emb_dim": 16,
  "num_heads": 2,
  "num_encoder_layers": 2,
  "num_decoder_layers": 2,
  "head_dim": 8,
  "mlp_dim": 24,
}
T5_1_1 = T5Config(**SHAPE, mlp_activations=("gelu", "linear"))
T5_1_0 = T5Config(**SHAPE, mlp_activations=("relu",), logits_via_embedding=True)
INPUTS = jnp.array([[5, 6, 7, 1, 0, 0], [9, 8, 7, 6, 5, 1], [3, 1, 0, 0, 0, 0]])
BATCH, SLOTS = INPUTS.shape[0], 20


class Net:
  """A random network with its methods as functions."""

  def __init__(self, config, seed=0):
    self.module = Transformer(config)
    self.variables = networks.initialize(self.module, jnp.ones((1, 4), jnp.int32), seed)
    self.params = self.variables["params"]
    self.extend = jax.jit(lambda *args: self.call("extend", *args))

  def call(self, method, *args, **kwargs):
    method = getattr(self.module, method)
    return self.module.apply({"params": self.params}, *args, method=method, **kwargs)

  def start(self, inputs=INPUTS, slots=SLOTS):
    encoded = self.call("encode", inputs, enable_dropout=False)
    return self.call("start", encoded, inputs, slots)


@pytest.fixture(scope="module", params=[T5_1_1, T5_1_0], ids=["t5_1_1", "t5_1_0"])
def net(request):
  return Net(request.param)


def random_tokens(rng, count):
  return jnp.asarray(rng.integers(2, 40, size=(BATCH, count)), jnp.int32)


def test_extend_equals_teacher_forcing(net):
  targets = random_tokens(np.random.default_rng(0), 10)
  inputs = jnp.pad(targets, ((0, 0), (1, 0)))[:, :-1]
  logits, _, cache = net.extend(net.start(), inputs)
  expected = net.module.apply(
    {"params": net.params}, INPUTS, inputs, targets, enable_dropout=False
  )
  np.testing.assert_allclose(logits, expected, atol=1e-5)
  np.testing.assert_array_equal(cache.index, 10)


def test_a_block_equals_single_tokens_after_random_rollbacks(net):
  rng = np.random.default_rng(1)
  blocks, singles = net.start(), net.start()
  for size in (3, 1, 4, 2, 3, 5):
    tokens = random_tokens(rng, size)
    logits, _, blocks = net.extend(blocks, tokens)
    one_by_one = []
    for i in range(size):
      step, _, singles = net.extend(singles, tokens[:, i : i + 1])
      one_by_one.append(step[:, 0])
    np.testing.assert_allclose(logits, jnp.stack(one_by_one, 1), atol=1e-5)
    # Each row keeps a different share of the block; the rest goes stale.
    back = blocks.index - rng.integers(0, size + 1, size=BATCH)
    blocks, singles = blocks.at(back), singles.at(back)


def test_stale_entries_are_overwritten_not_added_to(net):
  rng = np.random.default_rng(2)
  prefix, wrong, right = (random_tokens(rng, n) for n in (3, 4, 4))
  _, _, cache = net.extend(net.start(), prefix)
  _, _, dirty = net.extend(cache, wrong)
  expected, _, _ = net.extend(cache, right)
  logits, _, _ = net.extend(dirty.at(cache.index), right)
  np.testing.assert_allclose(logits, expected, atol=1e-6)


def test_a_tree_scores_each_of_its_paths(net):
  #      0        Node i sees itself and its ancestors; positions are prefix + depth.
  #     / \
  #    1   2
  #    |   |
  #    3   4
  parents, depths = [None, 0, 0, 1, 2], jnp.array([0, 1, 1, 2, 2])
  tree = np.eye(5, dtype=bool)
  for node, parent in enumerate(parents):
    if parent is not None:
      tree[node] |= tree[parent]
  rng = np.random.default_rng(3)
  prefix, nodes = random_tokens(rng, 4), random_tokens(rng, 5)
  _, _, cache = net.extend(net.start(), prefix)
  logits, _, _ = net.extend(
    cache, nodes, cache.index[:, None] + depths, jnp.asarray([tree] * BATCH)
  )
  for path in ([0, 1, 3], [0, 2, 4]):
    expected, _, _ = net.extend(cache, nodes[:, jnp.array(path)])
    np.testing.assert_allclose(logits[:, jnp.array(path)], expected, atol=1e-5)


def test_rows_do_not_see_each_other(net):
  tokens = random_tokens(np.random.default_rng(4), 5)
  together, _, _ = net.extend(net.start(), tokens)
  for row in range(BATCH):
    alone, _, _ = net.extend(net.start(INPUTS[row : row + 1]), tokens[row : row + 1])
    np.testing.assert_allclose(together[row], alone[0], atol=1e-5)


def test_padding_of_the_input_changes_nothing(net):
  tokens = random_tokens(np.random.default_rng(5), 5)
  expected, _, _ = net.extend(net.start(), tokens)
  padded, _, _ = net.extend(net.start(jnp.pad(INPUTS, ((0, 0), (0, 7)))), tokens)
  np.testing.assert_allclose(padded, expected, atol=1e-5)


def test_t5x_decode_interface_equals_extend(net):
  tokens = random_tokens(np.random.default_rng(6), 6)
  encoded = net.call("encode", INPUTS, enable_dropout=False)
  _, variables = net.module.apply(
    {"params": net.params},
    *(INPUTS, tokens, tokens),
    decode=True,
    enable_dropout=False,
    mutable=["cache"],
  )
  expected, _, _ = net.extend(net.start(), tokens)
  for i in range(6):
    one = tokens[:, i : i + 1]
    logits, variables = net.module.apply(
      {"params": net.params, "cache": variables["cache"]},
      *(encoded, INPUTS, one, one),
      decode=True,
      enable_dropout=False,
      max_decode_length=6,
      mutable=["cache"],
      method=net.module.decode,
    )
    np.testing.assert_allclose(logits[:, 0], expected[:, i], atol=1e-5)
  assert int(variables["cache"]["cache_index"]) == 6


def test_packed_examples_stay_apart(net):
  rng = np.random.default_rng(7)
  first, second = random_tokens(rng, 4)[:1], random_tokens(rng, 4)[:1]
  forced = lambda targets: jnp.pad(targets, ((0, 0), (1, 0)))[:, :-1]
  packed = net.module.apply(
    {"params": net.params},
    jnp.concatenate([first, second], 1),
    jnp.concatenate([forced(second), forced(first)], 1),
    jnp.concatenate([second, first], 1),
    encoder_segment_ids=jnp.array([[1] * 4 + [2] * 4]),
    decoder_segment_ids=jnp.array([[1] * 4 + [2] * 4]),
    enable_dropout=False,
  )
  alone = net.module.apply(
    {"params": net.params}, second, forced(first), first, enable_dropout=False
  )
  # Relative positions are differences, so the second example is as if alone.
  np.testing.assert_allclose(packed[:, 4:], alone, atol=1e-5)


def test_bfloat16_stays_close_to_float32():
  config = T5Config(**SHAPE, mlp_activations=("gelu", "linear"), dtype="bfloat16")
  exact, rounded = Net(T5_1_1), Net(config)
  tokens = random_tokens(np.random.default_rng(8), 5)
  expected, _, _ = exact.extend(exact.start(), tokens)
  logits, _, cache = rounded.extend(rounded.start(), tokens)
  assert logits.dtype == jnp.float32
  assert cache.keys[0].dtype == jnp.bfloat16
  np.testing.assert_allclose(logits, expected, atol=0.15)


def test_a_loop_looks_tokens_up_in_16_bits_without_a_float32_table():
  embed = Embed(T5Config(vocab_size=512, emb_dim=64))
  table = jax.random.normal(jax.random.key(0), (512, 64)).astype(jnp.bfloat16)
  look = lambda table, i: embed.apply({"params": {"embedding": table}}, i)

  def added(table, tokens):
    return jax.lax.fori_loop(0, 4, lambda i, x: x + look(table, tokens + i).sum(), 0.0)

  tokens = jnp.array([[3, 511], [0, 3]])
  compiled = jax.jit(added).lower(table, tokens).compile()
  assert compiled.memory_analysis().temp_size_in_bytes < table.nbytes
  assert (look(table, tokens) == table[tokens].astype(jnp.float32)).all()
  gradient = jax.grad(lambda table: look(table, tokens).sum())(table)
  assert gradient.sum(axis=1).nonzero()[0].tolist() == [0, 3, 511]


@pytest.mark.parametrize("config", [T5_1_1, T5_1_0], ids=["t5_1_1", "t5_1_0"])
def test_parameters_axes_and_logits_are_upstreams(config):
  try:
    upstream = importlib.import_module("t5x.examples.t5.network")
  except ImportError:
    pytest.skip("upstream T5X is not installed: nothing to compare with")
  known = upstream.T5Config.__dataclass_fields__
  fields = {f: getattr(config, f) for f in known}
  theirs = upstream.Transformer(upstream.T5Config(**fields))
  tokens = jnp.ones((1, 4), jnp.int32)
  expected = theirs.init(
    jax.random.key(0), tokens, tokens, tokens, enable_dropout=False
  )
  net = Net(config)
  flat = lambda tree: flax.traverse_util.flatten_dict(flax.core.unfreeze(tree))
  shapes = lambda tree: {k: (v.shape, v.dtype) for k, v in flat(tree).items()}
  assert shapes(net.params) == shapes(expected["params"])
  assert flat(net.variables["params_axes"]) == flat(expected["params_axes"])
  targets = random_tokens(np.random.default_rng(9), 8)
  args = (INPUTS, jnp.pad(targets, ((0, 0), (1, 0)))[:, :-1], targets)
  reference = theirs.apply({"params": net.params}, *args, enable_dropout=False)
  logits, _, _ = net.extend(net.start(), args[1])
  np.testing.assert_allclose(logits, reference, atol=1e-5)


@pytest.mark.parametrize(
  ("bad", "message"),
  [
    ({"mlp_activations": ("gleu",)}, "mlp_activations"),
    ({"mlp_activations": ()}, "mlp_activations"),
    ({"num_heads": 0}, "num_heads"),
  ],
)
def test_bad_configurations_are_refused(bad, message):
  with pytest.raises(ValueError, match=message):
    T5Config(**{**SHAPE, **bad})
