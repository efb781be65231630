"""The compiled loop on table models."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from specdec_t5x.core.distributions import Sampling
from specdec_t5x.core.rules import RULES
from specdec_t5x.core.types import Proposal
from specdec_t5x.decoding.loop import generate, limit
from specdec_t5x.decoding.policies import Fixed
from specdec_t5x.decoding.state import row_keys
from specdec_t5x.drafters.draft_model import DraftModel
from tests.hash_model import HashModel, Similar, sequence_probs, speculation

TARGET = HashModel(seed=1, vocab_size=6, eos_bias=-0.5)
DRAFT = HashModel(seed=2, vocab_size=6)


def speculate(draft, sampling, gamma, length, rows, seed=0, target=TARGET):
  drafter = DraftModel(draft, gamma)
  keys = row_keys(jax.random.key(seed), rows)

  @jax.jit
  def run():
    rule = RULES["token"]
    return generate(*speculation(target, drafter, rule, sampling, keys, length))

  return run()


# exactness/test_loop.py enumerates every draw; this test draws real uniforms.
def test_sampled_outputs_follow_the_enumerated_distribution():
  target = HashModel(seed=3, vocab_size=4, eos_bias=0.3)
  draft = Similar(9, 4, model=target, noise=0.5)
  decoded = speculate(draft, Sampling(), 2, 4, 20_000, seed=2, target=target)
  distribution = sequence_probs(target, Sampling(), max_length=4)
  assert_follows(np.asarray(decoded.tokens), distribution)


def assert_follows(outputs, distribution, level=1e-3):
  """Applies a chi-squared test, with rare outcomes pooled."""
  seen, counts = np.unique(outputs, axis=0, return_counts=True)
  observed = {tuple(o): c for o, c in zip(seen.tolist(), counts, strict=True)}
  assert set(observed) <= {o for o, p in distribution.items() if p > 0}
  expected = np.array(list(distribution.values())) * len(outputs)
  found = np.array([observed.get(o, 0) for o in distribution])
  rare = expected < 10
  expected = np.append(expected[~rare], expected[rare].sum())
  found = np.append(found[~rare], found[rare].sum())
  keep = expected > 0
  expected = expected[keep]
  found = found[keep]
  assert stats.chisquare(found, expected * found.sum() / expected.sum()).pvalue > level


def test_chi_squared_test_can_fail():
  distribution = {(2,): 0.5, (3,): 0.5}
  outputs = np.where(np.arange(20_000)[:, None] < 10_400, 2, 3)
  with pytest.raises(AssertionError):
    assert_follows(outputs, distribution)


def output_lengths(tokens):
  """Returns lengths up to EOS; token 0 is part of the table's vocabulary."""
  is_end = tokens == 1
  return np.where(is_end.any(1), is_end.argmax(1) + 1, tokens.shape[1])


def test_scores_are_the_log_probability_of_the_output():
  decoded = speculate(DRAFT, Sampling(0.8), 3, 6, 32, seed=7)
  distribution = sequence_probs(TARGET, Sampling(0.8), max_length=6)
  expected = [
    np.log(distribution[tuple(row)]) for row in np.asarray(decoded.tokens).tolist()
  ]
  np.testing.assert_allclose(decoded.scores, expected, rtol=1e-4)


@pytest.mark.parametrize(
  ("tokens", "most", "expected"),
  [
    ([4, 4, 4], 9, 3),
    ([4, 1, 4], 9, 2),
    ([1, 1, 1], 9, 1),
    ([4, 4, 4], 1, 1),
    ([4, 4, 4], 0, 0),
  ],
)
def test_limit_cuts_after_eos_and_at_the_most_tokens(tokens, most, expected):
  proposal = Proposal.chain(jnp.array([tokens]), jnp.zeros((1, 3, 6)), 3)
  limited = limit(proposal, jnp.array([most]), eos_id=1)
  assert int(limited.num_valid[0]) == expected


@pytest.mark.parametrize(("policy", "longest"), [(Fixed(), 5), (Fixed(2), 2)], ids=str)
def test_drafts_leave_room_for_the_target_s_token(policy, longest):
  drafter = DraftModel(DRAFT, 5)
  keys = row_keys(jax.random.key(0), 9)
  spec, state = speculation(
    TARGET, drafter, RULES["token"], Sampling(), keys, 8, policy=policy
  )
  state = state.replace(lengths=1 + jnp.arange(9), ended=jnp.arange(9) == 3)
  most = np.minimum(np.maximum(7 - np.arange(9), 0), longest)
  most[3] = 0
  np.testing.assert_array_equal(spec.draft_lengths(state), most)
