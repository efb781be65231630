"""Several drafts, scored as a tree in a real network's cache."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from specdec_t5x.core.distributions import LEVELS, Sampling
from specdec_t5x.core.types import Candidates, Verdict
from specdec_t5x.decoding import candidates
from specdec_t5x.drafters.draft_model import DraftModel
from specdec_t5x.drafters.multi import IndependentDrafts
from specdec_t5x.network.config import T5Config
from specdec_t5x.network.transformer import Transformer
from tests import networks

CONFIG = T5Config(
  vocab_size=30,
  emb_dim=16,
  num_heads=2,
  head_dim=8,
  mlp_dim=24,
  num_encoder_layers=1,
  num_decoder_layers=2,
)
ROWS, COUNT, GAMMA, PREFIX = 2, 3, 4, 3


@functools.cache
def start(copies=1):
  module, inputs = Transformer(CONFIG), jnp.array([[5, 6, 7, 1], [9, 3, 1, 0]])
  params = networks.initialize(module, inputs)["params"]
  return networks.start(module, params, inputs, 40, copies)


def random_tokens(seed, *shape):
  return jnp.asarray(np.random.default_rng(seed).integers(2, 30, shape), jnp.int32)


@pytest.fixture(scope="module")
def scored():
  """A prefix, drafts after it, and their scores as a tree."""
  extend, cache = start()
  prefix = random_tokens(1, ROWS, PREFIX)
  cache = extend(cache, prefix)[2].at(jnp.full(ROWS, PREFIX - 1))
  tokens = random_tokens(2, ROWS, COUNT, GAMMA)
  drafts = Candidates(
    tokens, jnp.zeros((*tokens.shape, 30)), jnp.full((ROWS, COUNT), GAMMA)
  )
  score = jax.jit(functools.partial(candidates.score, extend))
  return prefix, drafts, score(cache, prefix[:, -1], drafts)


@pytest.mark.parametrize("candidate", [0, 2])
def test_each_draft_is_scored_as_if_it_were_alone(scored, candidate):
  prefix, drafts, (logits, features, _) = scored
  extend, cache = start()
  whole = jnp.concatenate([prefix, drafts.tokens[:, candidate]], axis=1)
  alone, alone_features, _ = extend(cache, whole)
  last = slice(PREFIX - 1, None)
  np.testing.assert_allclose(logits[:, candidate], alone[:, last], atol=1e-5)
  np.testing.assert_allclose(features[:, candidate], alone_features[:, last], atol=1e-5)


def test_what_is_kept_is_as_if_there_had_been_no_other(scored):
  prefix, drafts, (logits, features, cache) = scored
  extend, empty = start()
  choice, rows = jnp.array([2, 1]), jnp.arange(ROWS)
  lengths, kept = jnp.full(ROWS, PREFIX), drafts.tokens[jnp.arange(ROWS), choice]
  proposal, probs, _, cache = jax.jit(candidates.choose)(
    drafts, logits, features, cache, lengths, choice
  )
  np.testing.assert_array_equal(proposal.tokens, kept)
  np.testing.assert_array_equal(probs, logits[rows, choice])
  # Three tokens of it were accepted; two more follow.
  more = random_tokens(3, ROWS, 2)
  after, _, _ = extend(cache.at(lengths + 3), more)
  whole = jnp.concatenate([prefix, kept[:, :3], more], axis=1)
  np.testing.assert_allclose(after, extend(empty, whole)[0][:, -2:], atol=1e-5)


def test_all_drafts_go_on_from_the_one_that_was_kept():
  extend, cache = start(COUNT)
  drafter = IndependentDrafts(DraftModel(extend, GAMMA, Sampling(1.0)), COUNT)
  sequences = jnp.pad(random_tokens(1, ROWS, 1), ((0, 0), (0, 20)))
  uniforms = lambda seed: jax.random.uniform(
    jax.random.key(seed), (ROWS, COUNT * GAMMA, LEVELS)
  )
  lengths = jnp.ones(ROWS, jnp.int32)
  propose = jax.jit(drafter.propose)
  first, state = propose(cache, sequences, lengths, uniforms(0))
  kept = jnp.array([1, 2])
  accepted, next_token = jnp.full(ROWS, GAMMA), jnp.full(ROWS, 7)
  features = jnp.zeros((ROWS, GAMMA + 1, 1))
  state = jax.jit(drafter.commit)(state, Verdict(accepted, next_token, kept), features)
  block = jnp.pad(first.tokens[jnp.arange(ROWS), kept], ((0, 0), (0, 1)))
  sequences = sequences.at[:, 1 : GAMMA + 2].set(block.at[:, -1].set(7))
  second, _ = propose(state, sequences, lengths + GAMMA + 1, uniforms(1))
  # The same law at the first position of each draft, and the one of a fresh start.
  for draft in range(1, COUNT):
    np.testing.assert_allclose(
      second.draft_probs[:, draft, 0], second.draft_probs[:, 0, 0], atol=1e-6
    )
  alone, empty = start()
  logits, _, _ = alone(empty, sequences[:, : GAMMA + 2])
  expected = jax.nn.softmax(logits[:, -1])
  np.testing.assert_allclose(second.draft_probs[:, 0, 0], expected, atol=1e-5)
