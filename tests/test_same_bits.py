"""Blocks of equal width give plain and speculative decoding equal bits (SAME_BITS)."""

import dataclasses
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from specdec_t5x import api
from specdec_t5x.core.rules import RULES
from specdec_t5x.decoding.decoder import FIXED_WIDTH, Decoder
from specdec_t5x.drafters.draft_model import DraftModel
from specdec_t5x.drafters.of_target import Quantized
from specdec_t5x.drafters.tree_draft import TreeDraft, delayed
from specdec_t5x.native import platforms
from specdec_t5x.network import functional
from specdec_t5x.network.config import GptConfig, T5Config
from specdec_t5x.network.functional import network_for
from specdec_t5x.network.net import in_blocks_of
from specdec_t5x.ways import Model
from tests import networks

SHAPE = {"vocab_size": 40, "emb_dim": 64, "num_heads": 2, "head_dim": 32}
SHAPE |= {"mlp_dim": 96, "dtype": "bfloat16", "products": "xla"}
T5 = T5Config(**SHAPE, num_encoder_layers=2, num_decoder_layers=2)
GPT = GptConfig(**SHAPE, num_layers=2)
INPUTS = jnp.asarray(np.random.default_rng(0).integers(2, 40, (12, 9)), jnp.int32)
ROOM = 15


def model(config, seed=0):
  network = network_for(config)
  params = jax.tree.map(lambda x: x.astype(jnp.bfloat16), networks.sharp(network, seed))
  return Model(network, params)


def run(config, has_draft=True, **words):
  """Returns tokens and scores of a greedy decode in blocks of equal width."""
  draft = model(config, 1) if has_draft else None
  words |= {"inputs": INPUTS, "room": ROOM, "same_bits": True}
  decoded = networks.decode(model(config), draft, **words)
  return np.asarray(decoded.tokens), np.asarray(decoded.statistics.log_prob)


WAYS = {
  "gamma 1": {"gamma": 1},
  "gamma 7": {"gamma": 7},
  "auto": {},
  "itself": {"has_draft": False, "drafter": Quantized(4, 32, gamma=3)},
  "in turns": {"gamma": 4, "slots": 12},
}


@pytest.mark.parametrize(
  ("config", "ways"),
  [
    (T5, ("gamma 7", "in turns")),
    pytest.param(T5, ("gamma 1", "auto", "itself"), marks=pytest.mark.slow),
    pytest.param(GPT, WAYS, marks=pytest.mark.slow),
  ],
  ids=["t5", "t5, more ways", "gpt"],
)
def test_plain_and_speculative_logits_have_the_same_bits(config, ways):
  """The bits of XLA's bfloat16 products depend on a block's width."""
  tokens, scores = run(config, has_draft=False)
  for name in ways:
    found, way_scores = run(config, **WAYS[name])
    np.testing.assert_array_equal(found, tokens, err_msg=name)
    # Scores are sums of the same log-probabilities in a different order.
    np.testing.assert_allclose(way_scores, scores, rtol=1e-5, err_msg=name)


def logits(extend, config, count):
  """Returns the logits of `count` tokens at the beginning of an output."""
  target = model(config)
  (cache,) = functional.start_decoding(target.network, target.params, INPUTS, 24)
  return extend(functional.extend_fn(target.network, target.params))(
    cache, jnp.asarray(INPUTS[:, :count])
  )


def test_a_block_has_the_fixed_width_and_leaves_no_filler():
  wide, _, cache = logits(partial(in_blocks_of, FIXED_WIDTH), T5, 3)
  assert wide.shape == (12, 3, 40)
  np.testing.assert_array_equal(cache.index, 3)
  full, _, _ = logits(lambda extend: extend, T5, FIXED_WIDTH)
  np.testing.assert_array_equal(wide, full[:, :3])


def test_by_default_blocks_have_one_width_on_accelerators_at_batch_1(monkeypatch):
  plain = Decoder(network_for(T5))
  drafts = Decoder(plain.target, DraftModel(plain.target, 5))
  long = Decoder(plain.target, DraftModel(plain.target, 8))
  assert not any(x.is_fixed(1) for x in (plain, drafts, long))  # The device is a CPU.
  monkeypatch.setattr(platforms, "wide_blocks_cost_more", lambda: False)
  assert [x.is_fixed(1) for x in (plain, drafts, long)] == [True, True, False]
  assert [x.is_fixed(4) for x in (plain, drafts, long)] == [False] * 3
  one_row = dataclasses.replace(drafts, slots=1)
  assert one_row.is_fixed(4)
  off = dataclasses.replace(drafts, same_bits=False)
  assert not off.is_fixed(1)


NETWORK = network_for(T5)
TREE = TreeDraft(NETWORK, delayed(0, 2, 2))


def test_trees_do_not_fit_the_block():
  """tests/errors/cases.toml has a chain that is too long."""
  with pytest.raises(ValueError, match="got 4 tokens as a tree: every call"):
    Decoder(NETWORK, TREE, RULES["traversal"], same_bits=True)


@pytest.mark.slow
def test_generate_takes_same_bits():
  target = model(T5)
  end = {"generation": dataclasses.replace(target.generation, eos_ids=(1,))}
  target = dataclasses.replace(target, **end)
  texts = [list(map(int, row)) for row in INPUTS[:4]]
  plain = api.generate(texts, target, None, max_length=10, same_bits=True)
  drafted = api.generate(
    texts, target, model(T5, 1), gamma=5, max_length=10, same_bits=True
  )
  assert [x.tokens for x in plain] == [x.tokens for x in drafted]
