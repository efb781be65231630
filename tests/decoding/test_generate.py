"""The compiled loop, on models whose distribution is a table."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from specdec_t5x.core.distributions import GREEDY, Sampling
from specdec_t5x.core.rules import RULES
from specdec_t5x.core.types import Proposal
from specdec_t5x.decoding.baseline import generate_plain
from specdec_t5x.decoding.generate import generate
from specdec_t5x.decoding.policy import Fixed
from specdec_t5x.decoding.state import initial_state, num_slots, row_keys
from specdec_t5x.decoding.step import limit
from specdec_t5x.drafters.draft_model import DraftModel
from specdec_t5x.native.distributions import adjusted_probs
from tests.hash_model import HashModel, sequence_probs, speculation

TARGET = HashModel(seed=1, vocab_size=6, eos_bias=-0.5)
DRAFT = HashModel(seed=2, vocab_size=6)


def similar(model, noise):
  """A draft that mostly agrees with `model`."""

  class Noisy(HashModel):
    @property
    def table(self):
      return model.table + noise * super().table

  return Noisy(seed=9, vocab_size=model.vocab_size)


@functools.partial(
  jax.jit,
  static_argnames=("target", "draft", "sampling", "gamma", "length", "rows"),
)
def speculate(key, *, target, draft, sampling, gamma, length, rows):
  drafter, keys = DraftModel(draft, gamma), row_keys(key, rows)
  rule = RULES["token"]
  return generate(*speculation(target, drafter, rule, sampling, keys, length))


def plain(key, *, target, sampling, length, rows):
  cache = target.start(rows, num_slots(length, 0))
  state = initial_state(cache, None, row_keys(key, rows), length, 0)
  return generate_plain(target.extend, sampling, state, length, 1, adjusted_probs)


@pytest.mark.parametrize(
  ("gamma", "draft"),
  [(1, DRAFT), (2, similar(TARGET, 0.3)), (4, TARGET), (20, similar(TARGET, 0.3))],
)
def test_greedy_output_is_the_plain_one_for_any_draft_and_gamma(gamma, draft):
  # gamma 20 exceeds the room of 13 from the start.
  settings = {"target": TARGET, "sampling": GREEDY, "length": 13, "rows": 1}
  expected = plain(jax.random.key(0), **settings)
  decoded = speculate(jax.random.key(0), draft=draft, gamma=gamma, **settings)
  np.testing.assert_array_equal(decoded.tokens, expected.tokens)


# With real draws; every draw's effect is enumerated in exactness/test_loop.py.
def test_sampled_outputs_follow_the_enumerated_distribution():
  sampling, gamma = Sampling(), 2
  rows, target = 20_000, HashModel(seed=3, vocab_size=4, eos_bias=0.3)
  decoded = speculate(
    jax.random.key(gamma),
    target=target,
    draft=similar(target, 0.5),
    sampling=sampling,
    gamma=gamma,
    length=4,
    rows=rows,
  )
  distribution = sequence_probs(target, sampling, max_length=4)
  assert_follows(np.asarray(decoded.tokens), distribution)


def assert_follows(outputs, distribution, level=1e-3):
  """Chi-squared at level 0.001, rare outcomes pooled."""
  seen, counts = np.unique(outputs, axis=0, return_counts=True)
  observed = {tuple(o): c for o, c in zip(seen.tolist(), counts, strict=True)}
  assert set(observed) <= {o for o, p in distribution.items() if p > 0}
  expected = np.array(list(distribution.values())) * len(outputs)
  found = np.array([observed.get(o, 0) for o in distribution])
  rare = expected < 10
  expected = np.append(expected[~rare], expected[rare].sum())
  found = np.append(found[~rare], found[rare].sum())
  keep = expected > 0
  expected, found = expected[keep], found[keep]
  assert stats.chisquare(found, expected * found.sum() / expected.sum()).pvalue > level


def test_chi_squared_test_can_fail():
  distribution = {(2,): 0.5, (3,): 0.5}
  outputs = np.where(np.arange(20_000)[:, None] < 10_400, 2, 3)
  with pytest.raises(AssertionError):
    assert_follows(outputs, distribution)


# With a truncation that reached only one of the two distributions, alpha would fall
# below 1.
@pytest.mark.parametrize(
  "sampling", [Sampling(), Sampling(1.0, top_k=2), Sampling(0.8, top_p=0.7)]
)
def test_with_the_target_as_draft_every_block_is_accepted_whole(sampling):
  gamma, length, target = 3, 12, HashModel(seed=4, vocab_size=5, eos_bias=-30.0)
  settings = {"sampling": sampling, "gamma": gamma, "length": length, "rows": 64}
  decoded = speculate(jax.random.key(0), target=target, draft=target, **settings)
  info = decoded.statistics
  np.testing.assert_array_equal(info.accepted, info.acceptance_positions)
  np.testing.assert_allclose(info.acceptance_mass, info.acceptance_positions, rtol=1e-5)
  np.testing.assert_array_equal(info.target_calls, length // (gamma + 1))
  np.testing.assert_array_equal(info.accepted, 9)


def test_statistics_add_up():
  settings = {"target": TARGET, "sampling": Sampling(), "length": 13, "rows": 128}
  decoded = speculate(
    jax.random.key(0), draft=similar(TARGET, 0.4), gamma=4, **settings
  )
  info, tokens = decoded.statistics, np.asarray(decoded.tokens)
  np.testing.assert_array_equal(info.emitted, output_lengths(tokens))
  # Each call adds its own token, but for calls whose draft ended the sequence.
  surplus = np.asarray(info.accepted + info.target_calls - info.emitted)
  assert set(surplus) == {0, 1}
  assert (info.accepted <= info.acceptance_positions).all()
  assert (info.acceptance_positions <= info.drafted).all()
  # Both estimates of alpha agree: accepted / tried and sum of min(p, q) / tried.
  tried = info.acceptance_positions.sum()
  difference = info.accepted.sum() / tried - info.acceptance_mass.sum() / tried
  assert abs(difference) < 4 * np.sqrt(0.25 / tried)


def output_lengths(tokens):
  """Up to the end of sequence; the table's vocabulary has a token 0, too."""
  is_end = tokens == 1
  return np.where(is_end.any(1), is_end.argmax(1) + 1, tokens.shape[1])


def test_scores_are_the_log_probability_of_the_output():
  decoded = speculate(
    jax.random.key(7),
    target=TARGET,
    draft=DRAFT,
    sampling=Sampling(0.8),
    gamma=3,
    length=6,
    rows=32,
  )
  distribution = sequence_probs(TARGET, Sampling(0.8), max_length=6)
  expected = [
    np.log(distribution[tuple(row)]) for row in np.asarray(decoded.tokens).tolist()
  ]
  np.testing.assert_allclose(decoded.scores, expected, rtol=1e-4)


def test_nothing_follows_the_end_of_sequence():
  decoded = speculate(
    jax.random.key(3),
    target=HashModel(seed=1, vocab_size=6, eos_bias=1.0),
    draft=HashModel(seed=2, vocab_size=6, eos_bias=1.0),
    sampling=Sampling(),
    gamma=4,
    length=13,
    rows=256,
  )
  tokens = np.asarray(decoded.tokens)
  after_end = np.cumsum(tokens == 1, axis=1) - (tokens == 1) > 0
  assert after_end.any()
  assert (tokens[after_end] == 0).all()


@pytest.mark.parametrize(
  ("tokens", "most", "expected"),
  [
    *(([4, 4, 4], 9, 3), ([4, 1, 4], 9, 2), ([1, 1, 1], 9, 1)),
    *(([4, 4, 4], 1, 1), ([4, 4, 4], 0, 0)),
  ],
)
def test_limit_cuts_after_eos_and_at_most(tokens, most, expected):
  proposal = Proposal.chain(jnp.array([tokens]), jnp.zeros((1, 3, 6)), 3)
  limited = limit(proposal, jnp.array([most]), eos_id=1)
  assert int(limited.num_valid[0]) == expected


@pytest.mark.parametrize(("policy", "longest"), [(Fixed(), 5), (Fixed(2), 2)], ids=str)
def test_drafts_leave_what_remains_to_the_targets_token(policy, longest):
  drafter, keys = DraftModel(DRAFT, 5), row_keys(jax.random.key(0), 9)
  given = TARGET, drafter, RULES["token"], Sampling(), keys, 8
  spec, state = speculation(*given, policy=policy)
  state = state.replace(lengths=1 + jnp.arange(9), ended=jnp.arange(9) == 3)
  most = np.minimum(np.maximum(7 - np.arange(9), 0), longest)
  most[3] = 0
  np.testing.assert_array_equal(spec.context.most(state, drafter.lengths), most)
