"""The token rule keeps the target's law: every draft, every accept event."""

import itertools

import jax.numpy as jnp
import numpy as np
import pytest

from specdec_t5x.core.distributions import residual
from specdec_t5x.core.rules import RULES
from specdec_t5x.core.token import acceptance_probs, next_token_probs
from specdec_t5x.core.types import Guarantee, Proposal

V = 3
ALMOST_ONE = 1 - 2.0**-24


def laws(kind, seed, gamma):
  """p of each context of up to gamma tokens, and q; contexts are tuples."""
  rng = np.random.default_rng(seed)
  contexts = [
    c for n in range(gamma + 1) for c in itertools.product(range(V), repeat=n)
  ]
  draw = lambda: rng.dirichlet(np.ones(V) * 0.7)
  p, q = {c: draw() for c in contexts}, {c: draw() for c in contexts}
  if kind == "equal":
    q = p
  elif kind == "disjoint":
    p = {c: np.array([0.4, 0.6, 0.0]) for c in contexts}
    q = {c: np.array([0.0, 0.0, 1.0]) for c in contexts}
  elif kind == "one-hot draft":
    q = {c: np.eye(V)[rng.integers(V)] for c in contexts}
  elif kind == "greedy":
    p = {c: np.eye(V)[rng.integers(V)] for c in contexts}
    q = {c: np.eye(V)[rng.integers(V)] for c in contexts}
  return p, q


def proposal_after(draft, p, q):
  """The rule's inputs for one draft, in a batch of one."""
  prefixes = [draft[:i] for i in range(len(draft) + 1)]
  target_probs = jnp.asarray([[p[c] for c in prefixes]], jnp.float32)
  draft_probs = jnp.asarray([[q[c] for c in prefixes[:-1]]], jnp.float32)
  valid = jnp.array([len(draft)])
  return target_probs, Proposal(jnp.array([draft]), draft_probs, valid)


def output_law(p, q, gamma):
  """Law of gamma + 1 tokens: what an iteration emits, completed from the target."""
  law = np.zeros((V,) * (gamma + 1))
  for draft in itertools.product(range(V), repeat=gamma):
    drafted = np.prod([q[draft[:i]][draft[i]] for i in range(gamma)])
    if drafted == 0:
      continue
    target_probs, proposal = proposal_after(draft, p, q)
    ratios = np.asarray(acceptance_probs(target_probs, proposal), np.float64)[0]
    for n in range(gamma + 1):
      event = np.prod(ratios[:n]) * (1 - ratios[n] if n < gamma else 1.0)
      if event == 0:
        continue
      next_probs = next_token_probs(target_probs, proposal, jnp.array([n]))[0]
      for rest in itertools.product(range(V), repeat=gamma + 1 - n):
        tokens = (*draft[:n], *rest)
        chance = float(next_probs[rest[0]])
        for i in range(n + 1, gamma + 1):
          chance *= p[tokens[:i]][tokens[i]]
        law[tokens] += drafted * event * chance
  return law


@pytest.mark.parametrize("gamma", [1, 2, 3])
@pytest.mark.parametrize(
  "kind", ["random", "equal", "disjoint", "one-hot draft", "greedy"]
)
def test_output_law_is_the_target_law(kind, gamma):
  p, q = laws(kind, seed=gamma, gamma=gamma)
  expected = np.zeros((V,) * (gamma + 1))
  for tokens in itertools.product(range(V), repeat=gamma + 1):
    expected[tokens] = np.prod([p[tokens[:i]][tokens[i]] for i in range(gamma + 1)])
  np.testing.assert_allclose(output_law(p, q, gamma), expected, atol=1e-6)


def test_wrong_draft_law_is_noticed():
  # The commonest trap: the draft is argmax's, but the verifier is told a soft law.
  p, q = laws("random", seed=5, gamma=1)
  greedy = np.eye(V)[np.argmax(q[()])]
  target_probs, proposal = proposal_after((int(np.argmax(q[()])),), p, q)
  assert proposal.draft_probs[0, 0, proposal.tokens[0, 0]] < 1
  accept = float(acceptance_probs(target_probs, proposal)[0, 0])
  law = accept * greedy + (1 - accept) * np.asarray(
    next_token_probs(target_probs, proposal, jnp.array([0]))[0]
  )
  assert np.abs(law - p[()]).max() > 0.01


@pytest.mark.parametrize("seed", range(4))
def test_verify_accepts_below_the_ratio_and_stops_at_the_first_failure(seed):
  gamma = 3
  p, q = laws("random", seed, gamma)
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
      verdict = RULES["token"].verify(target_probs, proposal, jnp.asarray(uniforms))
      assert int(verdict.num_accepted[0]) == expected


def test_a_token_that_the_target_excludes_is_rejected_even_at_uniform_zero():
  p = {(): np.array([0.0, 0.5, 0.5]), (0,): np.ones(3) / 3}
  q = {(): np.array([1.0, 0.0, 0.0])}
  target_probs, proposal = proposal_after((0,), p, q)
  verdict = RULES["token"].verify(target_probs, proposal, jnp.zeros((1, 2)))
  assert int(verdict.num_accepted[0]) == 0
  assert int(verdict.next_token[0]) == 1


def test_tokens_beyond_num_valid_are_never_accepted_and_the_next_one_is_a_bonus():
  p, q = laws("equal", seed=1, gamma=3)
  target_probs, proposal = proposal_after((0, 1, 2), p, q)
  proposal = proposal.replace(num_valid=jnp.array([1]))
  verdict = RULES["token"].verify(target_probs, proposal, jnp.zeros((1, 4)))
  assert int(verdict.num_accepted[0]) == 1
  bonus = next_token_probs(target_probs, proposal, verdict.num_accepted)
  np.testing.assert_allclose(bonus[0], p[(0,)], atol=1e-6)


def test_recovered_law_masks_what_the_draft_had_too_much_of():
  p, q = laws("random", seed=2, gamma=1)
  target_probs, proposal = proposal_after((0,), p, q)
  recovered = next_token_probs(target_probs, proposal, jnp.array([0]))
  excess = residual(target_probs[0, 0], proposal.draft_probs[0, 0])
  np.testing.assert_allclose(recovered[0], excess, atol=1e-6)
  overdrafted = p[()] <= q[()]
  assert overdrafted.any()
  assert (np.asarray(recovered[0])[overdrafted] == 0).all()


def test_rules_state_their_guarantee():
  assert RULES["token"].guarantee is Guarantee.EXACT
