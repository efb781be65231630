"""The compiled loop with drafts that need no model: the output is the target's own."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from specdec_t5x.core.distributions import GREEDY, Sampling
from specdec_t5x.core.rules import get_rule
from specdec_t5x.decoding.generate import generate
from specdec_t5x.decoding.state import initial_state, num_slots, row_keys
from specdec_t5x.decoding.step import Speculation
from specdec_t5x.decoding.widths import block_widths
from specdec_t5x.drafters.copy import CopyDraft
from specdec_t5x.drafters.draft_model import DraftModel
from specdec_t5x.network.functional import start_decoding
from specdec_t5x.training.ngrams import estimate
from tests.decoding.test_generate import assert_follows, plain
from tests.hash_model import HashModel, sequence_law

INPUT = [2, 3, 4, 5, 3, 2, 5, 4, 2, 2, 1, 0]
TEXTS = [[2, 3, 2, 5, 1], [4, 3, 2, 1], [5, 4, 5, 2, 3, 1]]


def drafting(kind, rows, gamma, size, sampling, length):
  """A drafter, its first state and the widths that the target is called with."""
  if kind == "copy":
    state = jnp.tile(jnp.array(INPUT), (rows, 1))
    return CopyDraft(gamma, size, shortest_match=1), state, block_widths(gamma)
  table, params = estimate(TEXTS, size, order=3)
  slots = num_slots(length, gamma)
  extend, cache = start_decoding(table, params, jnp.ones((rows, 1), jnp.int32), slots)
  return DraftModel(extend, gamma, sampling), cache, ()


@functools.partial(
  jax.jit,
  static_argnames=("kind", "target", "sampling", "rule", "gamma", "length", "rows"),
)
def speculate(key, *, kind, target, sampling, rule, gamma, length, rows):
  size = target.vocab_size
  drafter, state, widths = drafting(kind, rows, gamma, size, sampling, length)
  spec = Speculation(
    target.extend, drafter, get_rule(rule), sampling, gamma, length, 1, widths=widths
  )
  cache = target.start(rows, num_slots(length, gamma))
  start = initial_state(cache, state, row_keys(key, rows), length, gamma)
  return generate(spec, start)


@pytest.mark.parametrize("kind", ["copy", "ngram"])
@pytest.mark.parametrize("gamma", [4, 20])
def test_greedy_output_is_the_plain_one(kind, gamma):
  target = HashModel(seed=1, vocab_size=6, eos_bias=-2.0)
  settings = {"target": target, "sampling": GREEDY, "length": 19, "rows": 3}
  expected = plain(jax.random.key(0), **settings)
  decoded = speculate(
    jax.random.key(0), kind=kind, rule="token", gamma=gamma, **settings
  )
  np.testing.assert_array_equal(decoded.tokens, expected.tokens)
  assert (decoded.statistics.drafted > 0).all()


@pytest.mark.parametrize("kind", ["copy", "ngram"])
@pytest.mark.parametrize(
  ("rule", "sampling"), [("token", Sampling(1.3, top_k=5)), ("block", Sampling())]
)
def test_sampled_outputs_follow_the_enumerated_law(kind, rule, sampling):
  target = HashModel(seed=3, vocab_size=6, eos_bias=0.0)
  decoded = speculate(
    jax.random.key(7),
    kind=kind,
    target=target,
    sampling=sampling,
    rule=rule,
    gamma=3,
    length=3,
    rows=20_000,
  )
  assert_follows(decoded.tokens, sequence_law(target, sampling, 3))
  info = decoded.statistics
  assert 0 < info.accepted.sum() < info.drafted.sum()
  if rule == "block":
    return
  # Alpha by counts is alpha by mass: q is the law that was drafted from.
  accepted, mass = (np.asarray(x, float) for x in (info.accepted, info.acceptance_mass))
  error = np.std(accepted - mass) / np.sqrt(accepted.size)
  assert abs(np.mean(accepted - mass)) < 4 * error
