"""The oracle draft: accepted as often as it is told, on any network."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from specdec_t5x.bench.oracle import forced_tokens, oracle_extend
from specdec_t5x.core.distributions import GREEDY
from specdec_t5x.core.token import Token
from specdec_t5x.decoding.generate import generate
from specdec_t5x.decoding.state import row_keys
from specdec_t5x.drafters.draft_model import DraftModel
from tests.hash_model import HashModel, plain, speculation

TARGET, DRAFT = (HashModel(seed, vocab_size=5) for seed in (1, 2))
ROWS, LENGTH, GAMMA, NEVER = 64, 24, 3, -1


@pytest.fixture(scope="module")
def outputs():
  return plain(TARGET, GREEDY, keys(), LENGTH, NEVER).tokens


def keys():
  return row_keys(jax.random.key(0), ROWS)


@jax.jit
def decode(forced):
  drafter, known = DraftModel(DRAFT, GAMMA), (Token(), GREEDY, keys(), LENGTH, NEVER)
  spec, state = speculation(TARGET, drafter, *known)
  draft = spec.context.networks["draft"]
  draft = dataclasses.replace(draft, extend=oracle_extend(DRAFT.extend, forced))
  context = dataclasses.replace(spec.context, networks={"draft": draft})
  return generate(dataclasses.replace(spec, context=context), state)


@pytest.mark.parametrize("alpha", [0.0, 0.6, 1.0])
def test_it_is_accepted_as_often_as_told_and_changes_no_output(outputs, alpha):
  key = jax.random.key(3)
  shape = (ROWS, LENGTH)
  own = jnp.broadcast_to(outputs, shape)
  decoded = decode(forced_tokens(own, alpha, 5, key))
  np.testing.assert_array_equal(decoded.tokens, outputs)
  tried = int(decoded.statistics.acceptance_positions.sum())
  # Four standard deviations of about a thousand tried positions.
  margin = 4 * (alpha * (1 - alpha) / tried) ** 0.5
  assert abs(int(decoded.statistics.accepted.sum()) / tried - alpha) <= margin


def test_what_is_forced_is_the_output_or_another_token():
  own = jnp.tile(jnp.arange(5), (3, 1))
  none, every = (forced_tokens(own, a, 5, jax.random.key(0)) for a in (0.0, 1.0))
  np.testing.assert_array_equal(every, own)
  np.testing.assert_array_equal(none, (own + 1) % 5)
