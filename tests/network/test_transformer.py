"""Networks of every kind: blocks, trees, prompts, bfloat16, upstream."""

import dataclasses

import flax
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from benchmarks import sizes
from specdec_t5x.core.tree import Tree
from specdec_t5x.network.config import GptConfig, T5Config
from specdec_t5x.network.functional import (
  blank_variables,
  check_same_kind,
  initial_variables,
  is_decoder_only,
  network_for,
)
from specdec_t5x.network.heads import HeadsConfig
from specdec_t5x.network.layers import Embed
from tests import networks
from tests.network import kinds
from tests.network.kinds import GPT, INPUTS, ROWS, SLOTS, T5_1_0, T5_1_1, random_tokens

pytestmark = pytest.mark.slow

T5S = {"t5 1.1": T5_1_1, "t5 1.0": T5_1_0}
EACH = {**T5S, "gated gpt": kinds.GATED_GPT, **kinds.GEMMAS}


@kinds.each(EACH)
def test_extend_equals_teacher_forcing_after_rollbacks_of_ragged_rows(config):
  rng = np.random.default_rng(1)
  extend, cache = kinds.start(config)
  sequences = np.zeros((ROWS, SLOTS), np.int32)
  rows = np.arange(ROWS)[:, None]
  for step, size in enumerate((4, 1, 4, 4, 1)):
    tokens = random_tokens(step, size)
    places = np.asarray(cache.index)[:, None] + np.arange(size)
    sequences[rows, places] = tokens
    logits, _, cache = extend(cache, tokens)
    expected = kinds.forced(config, jnp.asarray(sequences))[rows, places]
    np.testing.assert_allclose(logits, expected, atol=1e-5)
    # Rows keep different parts of the block; the remainder becomes stale.
    cache = cache.at(cache.index - jnp.asarray(rng.integers(0, size + 1, size=ROWS)))
  assert len(set(cache.index.tolist())) > 1


@kinds.each(EACH)
def test_a_tree_scores_every_path(config):
  tree = Tree((0, 0, 1, 2))
  prefix = random_tokens(2, 4)
  nodes = random_tokens(3, 5)
  extend, cache = kinds.start(config)
  _, _, cache = extend(cache, prefix)
  sees = jnp.asarray([tree.sees] * ROWS)
  positions = cache.index[:, None] + jnp.asarray(tree.depths)
  logits, _, _ = extend(cache, nodes, positions, sees)
  for path in (jnp.array([0, 1, 3]), jnp.array([0, 2, 4])):
    sequence = jnp.concatenate([prefix, nodes[:, path]], axis=1)
    expected = kinds.forced(config, sequence)[:, 4:]
    np.testing.assert_allclose(logits[:, path], expected, atol=1e-5)


def test_lookups_in_a_loop_make_no_float32_copy_of_the_embedding():
  embed = Embed(T5Config(vocab_size=512, emb_dim=64))
  table = jax.random.normal(jax.random.key(0), (512, 64)).astype(jnp.bfloat16)

  def look(table, i):
    return embed.apply({"params": {"embedding": table}}, i)

  def added(table, tokens):
    return jax.lax.fori_loop(0, 4, lambda i, x: x + look(table, tokens + i).sum(), 0.0)

  tokens = jnp.array([[3, 511], [0, 3]])
  compiled = jax.jit(added).lower(table, tokens).compile()
  assert compiled.memory_analysis().temp_size_in_bytes < table.nbytes
  assert (look(table, tokens) == table[tokens].astype(jnp.float32)).all()
  gradient = jax.grad(lambda table: look(table, tokens).sum())(table)
  assert gradient.sum(axis=1).nonzero()[0].tolist() == [0, 3, 511]


UPSTREAM = {
  T5Config: ("t5", "Transformer", "T5Config"),
  GptConfig: ("decoder_only", "DecoderWrapper", "TransformerConfig"),
}


@kinds.each(kinds.OLD)
def test_parameters_axes_and_logits_equal_upstream(config):
  folder, network, settings = UPSTREAM[type(config)]
  upstream = pytest.importorskip(
    f"t5x.examples.{folder}.network", reason="upstream T5X is not installed"
  )
  make = getattr(upstream, settings)
  fields = {field: getattr(config, field) for field in make.__dataclass_fields__}
  theirs = getattr(upstream, network)(make(**fields))
  ours = network_for(config)
  inputs = () if is_decoder_only(ours) else (INPUTS,)
  tokens = random_tokens(9, 150)
  lengths = jnp.array([150, 7, 31])
  arguments = [*inputs, tokens, 5 * (jnp.arange(150) < lengths[:, None])]
  expected = theirs.init(jax.random.key(0), *arguments, enable_dropout=False)
  found = kinds.variables(config)

  def flat(tree):
    return flax.traverse_util.flatten_dict(flax.core.unfreeze(tree))

  def shapes(tree):
    return {k: (v.shape, v.dtype) for k, v in flat(tree).items()}

  assert shapes(found["params"]) == shapes(expected["params"])
  assert flat(found["params_axes"]) == flat(expected["params_axes"])
  logits, reference = (
    module.apply({"params": found["params"]}, *arguments, enable_dropout=False)
    for module in (ours, theirs)
  )
  for row, length in enumerate(lengths):
    np.testing.assert_allclose(logits[row, :length], reference[row, :length], atol=1e-5)


MEDUSA = HeadsConfig("medusa", count=2, emb_dim=8)


@pytest.mark.parametrize(
  ("config", "bad", "message"),
  [
    (T5_1_1, {"dtype": "int32"}, "dtype"),
    (T5_1_1, {"dtype": "float16"}, "T5's activations overflow float16"),
    (T5_1_1, {"mlp_activations": ("gleu",)}, "mlp_activations"),
    (T5_1_1, {"mlp_activations": ()}, "mlp_activations"),
    (T5_1_1, {"num_heads": 0}, "num_heads"),
    (MEDUSA, {"kind": "eagles"}, "kind of heads must be one of .*got 'eagles'"),
    (MEDUSA, {"kind": "parallel", "count": 1}, "count must be a whole .* at least 2"),
    (MEDUSA, {"count": 0}, "HeadsConfig.count must be .* of at least 1, got 0"),
    (MEDUSA, {"dtype": "float16"}, "NetworkConfig.dtype must be one of"),
  ],
)
def test_bad_configurations_are_refused(config, bad, message):
  with pytest.raises(ValueError, match=message):
    dataclasses.replace(config, **bad)


# ---- Prompts of decoder-only networks. ----


def test_the_cache_holds_the_prompt_without_the_last_token():
  prompts = jnp.array([[7, 9, 11, 13, 15, 17], [8, 6, 0, 0, 0, 0], [0] * 6])
  extend, cache = networks.start(
    network_for(GPT), kinds.variables(GPT)["params"], prompts, SLOTS, 2, prompts
  )
  np.testing.assert_array_equal(cache.index, [6, 6, 2, 2, 0, 0])
  # The last token of the prompt, or the start token.
  last = jnp.array([17, 17, 6, 6, 0, 0])
  logits, _, _ = extend(cache, last[:, None])
  sequences = jnp.pad(prompts, ((0, 0), (1, 0)))
  expected = kinds.forced(GPT, sequences)[jnp.arange(ROWS), jnp.array([6, 2, 0])]
  np.testing.assert_allclose(logits[:, 0], jnp.repeat(expected, 2, axis=0), atol=1e-5)


def test_bidirectional_prompts_and_pairs_of_different_kinds_are_refused():
  tokens = random_tokens(6, 3)
  with pytest.raises(ValueError, match="causal in the prompt"):
    network_for(GPT).apply(
      kinds.variables(GPT), tokens, tokens, decoder_causal_attention=tokens
    )
  t5 = network_for(T5Config(vocab_size=40))
  with pytest.raises(
    ValueError, match="two decoder-only networks, got a GptTransformer and"
  ):
    check_same_kind(network_for(GPT), t5)


# ---- The published sizes of T5 1.1. ----


# Published parameter counts of T5 1.1 (vocabulary padded to 32,128).
@pytest.mark.parametrize(("size", "millions"), [("small", 77), ("base", 248)])
def test_a_size_has_its_published_number_of_parameters(size, millions):
  module = network_for(sizes.t5_1_1(size))

  def init(key):
    return initial_variables(module, key)["params"]

  leaves = jax.tree.leaves(jax.eval_shape(init, jax.random.key(0)))
  assert round(sum(leaf.size for leaf in leaves) / 1e6) == millions
  with pytest.raises(ValueError, match="Unknown size 'huge'"):
    sizes.t5_1_1("huge")


@kinds.each(EACH)
def test_blank_variables_have_initial_shapes_and_no_values(config):
  network = network_for(config)
  initial = initial_variables(network, jax.random.key(0))
  blank = blank_variables(network)
  assert jax.tree.structure(blank) == jax.tree.structure(initial)
  for leaf, value in zip(jax.tree.leaves(blank), jax.tree.leaves(initial), strict=True):
    assert (leaf.shape, leaf.dtype) == (value.shape, value.dtype)
    assert jnp.isnan(leaf).all()
    assert jnp.isfinite(value).all()
