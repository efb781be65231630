"""Drafts of single steps have the policy's lengths."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from specdec_t5x.core.distributions import GREEDY, Sampling
from specdec_t5x.core.rules import RULES
from specdec_t5x.decoding.contracts import Policy
from specdec_t5x.decoding.state import row_keys
from specdec_t5x.drafters.draft_model import DraftModel
from tests.hash_model import HashModel, speculation

pytestmark = pytest.mark.slow

TARGET = HashModel(seed=1, vocab_size=6, eos_bias=-1.0)
DRAFT = HashModel(seed=2, vocab_size=6, eos_bias=-1.0)


@dataclasses.dataclass(frozen=True)
class Prescribed(Policy):
  """A policy with a prescribed length per row."""

  prescribed: tuple[int, ...] = ()

  def lengths(self, policy_state, choices):
    del policy_state, choices
    return jnp.array(self.prescribed)


def propose(policy, sampling, rows):
  """Returns drafts of rows with one output token, and the drafter's new state."""
  keys = row_keys(jax.random.key(1), rows)
  drafter, rule = DraftModel(DRAFT, 5), RULES["token"]
  spec, state = speculation(TARGET, drafter, rule, sampling, keys, 40, policy=policy)
  known = 2 + jnp.arange(rows) % 4
  uniforms = jax.random.uniform(jax.random.key(2), (rows, 5, 1))
  sequences = state.sequences.at[:, 1].set(known)
  state = state.replace(sequences=sequences, lengths=jnp.full(rows, 2))
  return jax.jit(lambda: spec.drafter.propose(spec, state, uniforms))()


@pytest.mark.parametrize("sampling", [GREEDY, Sampling(0.7, top_k=3)], ids=str)
def test_a_row_drafts_the_policy_s_length_or_up_to_an_eos(sampling):
  lengths = np.arange(64) % 6
  proposal, _ = propose(Prescribed(tuple(lengths.tolist())), sampling, 64)
  ends = np.asarray(proposal.tokens) == 1
  up_to_end = np.where(ends.any(axis=1), ends.argmax(axis=1) + 1, 5)
  expected = np.minimum(lengths, up_to_end)
  np.testing.assert_array_equal(proposal.num_valid, expected)
  assert (expected < lengths).any()


@pytest.mark.parametrize("lengths", [(1, 0, 3, 2), (4, 1, 1, 1), (0, 0, 1, 0)], ids=str)
def test_drafting_stops_after_the_longest_draft(lengths):
  proposal, after = propose(Prescribed(lengths), GREEDY, 4)
  longest = int(proposal.num_valid.max())
  assert longest == max(lengths)
  # The draft read two known tokens and every drafted token but the last.
  np.testing.assert_array_equal(after.cache.index, 2 + longest - 1)
  assert not proposal.tokens[:, longest:].any()
  assert proposal.draft_probs is None  # Greedy tokens are certain.
