"""The token rule, by hand; its law is enumerated in test_rules.py."""

import itertools

import jax.numpy as jnp
import numpy as np
import pytest

from specdec_t5x.core.distributions import residual
from specdec_t5x.core.rules import RULES
from specdec_t5x.core.token import acceptance_probs, next_token_probs
from specdec_t5x.core.types import Proposal

V = 3
ALMOST_ONE = 1 - 2.0**-24


def random_laws(seed, gamma):
  """p of each context of up to gamma tokens, and q; contexts are tuples."""
  rng = np.random.default_rng(seed)
  contexts = [
    c for n in range(gamma + 1) for c in itertools.product(range(V), repeat=n)
  ]
  draw = lambda: {c: rng.dirichlet(np.ones(V) * 0.7) for c in contexts}
  return draw(), draw()


def proposal_after(draft, p, q):
  """The rule's inputs for one draft, in a batch of one."""
  prefixes = [draft[:i] for i in range(len(draft) + 1)]
  target_probs = jnp.asarray([[p[c] for c in prefixes]], jnp.float32)
  draft_probs = jnp.asarray([[q[c] for c in prefixes[:-1]]], jnp.float32)
  return target_probs, Proposal.chain(jnp.array([draft]), draft_probs, len(draft))


def verify(target_probs, proposal, uniforms):
  """The verdict under one uniform a decision: V is small."""
  uniforms = jnp.asarray(uniforms, jnp.float32)[..., None]
  return RULES["token"].verify(target_probs, proposal, uniforms)


@pytest.mark.parametrize("seed", range(4))
def test_verify_accepts_below_the_ratio_and_stops_at_the_first_failure(seed):
  gamma = 3
  p, q = random_laws(seed, gamma)
  for draft in itertools.product(range(V), repeat=gamma):
    target_probs, proposal = proposal_after(draft, p, q)
    ratios = np.asarray(acceptance_probs(target_probs, proposal))[0]
    for n in range(gamma + 1):
      uniforms = np.full((1, gamma + 1), 0.0, np.float32)
      uniforms[0, n:] = ALMOST_ONE
      # Certain acceptances can't be refused by any uniform.
      expected = n
      while expected < gamma and ratios[expected] == 1.0:
        expected += 1
      verdict = verify(target_probs, proposal, uniforms)
      assert int(verdict.last[0]) == expected


def test_a_token_that_the_target_excludes_is_rejected_even_at_uniform_zero():
  p = {(): np.array([0.0, 0.5, 0.5]), (0,): np.ones(3) / 3}
  q = {(): np.array([1.0, 0.0, 0.0])}
  target_probs, proposal = proposal_after((0,), p, q)
  verdict = verify(target_probs, proposal, np.zeros((1, 2)))
  assert int(verdict.last[0]) == 0
  assert int(verdict.next_token[0]) == 1


def test_tokens_beyond_num_valid_are_never_accepted_and_the_next_one_is_a_bonus():
  p, _ = random_laws(seed=1, gamma=3)
  target_probs, proposal = proposal_after((0, 1, 2), p, p)
  proposal = Proposal.chain(proposal.tokens, proposal.draft_probs, 1)
  verdict = verify(target_probs, proposal, np.zeros((1, 4)))
  assert int(verdict.last[0]) == 1
  bonus = next_token_probs(target_probs, proposal, verdict.last)
  np.testing.assert_allclose(bonus[0], p[(0,)], atol=1e-6)


def test_recovered_law_masks_what_the_draft_had_too_much_of():
  p, q = random_laws(seed=2, gamma=1)
  target_probs, proposal = proposal_after((0,), p, q)
  recovered = next_token_probs(target_probs, proposal, jnp.array([0]))
  excess = residual(target_probs[0, 0], proposal.draft_probs[0, 0])
  np.testing.assert_allclose(recovered[0], excess, atol=1e-6)
  overdrafted = p[()] <= q[()]
  assert overdrafted.any()
  assert (np.asarray(recovered[0])[overdrafted] == 0).all()
