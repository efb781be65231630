"""The compiled loop with drafts that need no model: the output is the target's own."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from specdec_t5x.core.distributions import GREEDY, Sampling
from specdec_t5x.core.rules import RULES
from specdec_t5x.decoding.generate import generate
from specdec_t5x.decoding.state import row_keys
from specdec_t5x.drafters.copy import Copy
from specdec_t5x.drafters.draft_model import DraftModel
from specdec_t5x.network.functional import extend_fn, start_decoding
from specdec_t5x.training.ngrams import estimate
from tests.decoding.test_generate import assert_follows, plain
from tests.hash_model import HashModel, sequence_probs, speculation

INPUT = [2, 3, 4, 5, 3, 2, 5, 4, 2, 2, 1, 0]
TEXTS = [[2, 3, 2, 5, 1], [4, 3, 2, 1], [5, 4, 5, 2, 3, 1]]


@dataclasses.dataclass(frozen=True)
class Ngrams:
  """A table of n-grams as a network of `speculation`."""

  size: int

  def start(self, rows, num_slots):
    table, params = estimate(TEXTS, self.size, order=3)
    return start_decoding(table, params, jnp.ones((rows, 1), jnp.int32), num_slots)[1]

  def extend(self, *args):
    return extend_fn(*estimate(TEXTS, self.size, order=3))(*args)


@functools.partial(
  jax.jit,
  static_argnames=("kind", "target", "sampling", "rule", "gamma", "length", "rows"),
)
def speculate(key, *, kind, target, sampling, rule, gamma, length, rows):
  drafter = DraftModel(Ngrams(target.vocab_size), gamma)
  if kind == "copy":
    drafter = Copy(gamma, match=1)
  keys, source = row_keys(key, rows), jnp.tile(jnp.array(INPUT), (rows, 1))
  spec, start = speculation(
    target, drafter, RULES[rule], sampling, keys, length, source=source
  )
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
def test_sampled_outputs_follow_the_enumerated_distribution(kind, rule, sampling):
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
  assert_follows(decoded.tokens, sequence_probs(target, sampling, 3))
  info = decoded.statistics
  assert 0 < info.accepted.sum() < info.drafted.sum()
  if rule == "block":
    return
  # Alpha by counts is alpha by mass: q is the distribution that was drafted from.
  accepted, mass = (np.asarray(x, float) for x in (info.accepted, info.acceptance_mass))
  error = np.std(accepted - mass) / np.sqrt(accepted.size)
  assert abs(np.mean(accepted - mass)) < 4 * error
