"""Drafts that go on token by token: how long they are, and what depends on it."""

import functools

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from specdec_t5x.core.distributions import GREEDY, Sampling
from specdec_t5x.core.rules import RULES
from specdec_t5x.decoding.generate import generate
from specdec_t5x.decoding.policy import Fixed
from specdec_t5x.decoding.state import row_keys
from specdec_t5x.decoding.step import limit, step
from specdec_t5x.drafters.draft_model import DraftModel
from specdec_t5x.policies import Confidence, CostAware
from tests.hash_model import HashModel, python_loop, speculation

TARGET = HashModel(seed=1, vocab_size=6, eos_bias=-1.0)
DRAFT = HashModel(seed=2, vocab_size=6, eos_bias=-1.0)
FIXED, SURE = Fixed(), Confidence(0.3)


def by_row(*seconds):
  """Lengths of a row's own, by such times of iterations."""
  return CostAware(seconds, decay=0.9, by_row=True)


def dearer(gamma, cost=0.1):
  """As `by_row`; a drafted token costs so much of plain decoding's iteration."""
  return by_row(*(1 + cost * n for n in range(gamma + 1)))


ROWS_OWN = by_row(1.0, 1.12, 1.26, 1.36, 1.54, 1.64)
POLICIES = pytest.mark.parametrize(
  "policy", [SURE, ROWS_OWN], ids=lambda policy: type(policy).__name__
)
SETTINGS = {"gamma": 5, "length": 13, "sampling": Sampling()}


def prepare(key, policy, rows, gamma, length, sampling, draft=DRAFT, target=TARGET):
  """The loop's settings and first state."""
  drafter, keys = DraftModel(draft, gamma), row_keys(key, rows)
  rule = RULES["token"]
  return speculation(target, drafter, rule, sampling, keys, length, policy=policy)


@functools.partial(
  jax.jit, static_argnames=("policy", "rows", "gamma", "length", "sampling", "loop")
)
def speculate(key, *, loop=jax.lax.while_loop, **settings):
  return generate(*prepare(key, **settings), loop)


def iterations(policy, rows, **settings):
  """Of each iteration the state before, sizes of drafts, the state after, counts."""
  settings = {**SETTINGS, **settings}
  spec, state = prepare(jax.random.key(3), policy, rows, **settings)

  @jax.jit
  def one(state):
    uniforms = state.uniforms(spec.drafter.decisions)
    proposal, _ = spec.drafter.propose(spec.context, state, uniforms)
    return proposal.num_valid, *step(spec, state)

  while not state.ended.all():
    sizes, after, info = one(state)
    yield state, np.asarray(sizes), after, info
    state = after


# ---- The output. ----


@pytest.mark.parametrize(
  ("gamma", "policy"), [(1, dearer), (3, lambda _: SURE), (20, dearer)]
)
def test_greedy_outputs_are_those_of_the_fixed_length(policy, gamma):
  # gamma 20 exceeds the room of 13 from the start.
  settings = {"rows": 3, "gamma": gamma, "length": 13, "sampling": GREEDY}
  key = jax.random.key(0)
  expected = speculate(key, policy=FIXED, **settings).tokens
  found = speculate(key, policy=policy(gamma), **settings).tokens
  np.testing.assert_array_equal(found, expected)


# Its drafts pay after a success alone, so few rows often rest where many do not.
SELDOM = by_row(1.0, 1.7, 2.1, 2.4, 2.8, 3.1)


@pytest.mark.parametrize("policy", [SURE, SELDOM], ids=["sure", "seldom"])
def test_a_row_does_not_depend_on_its_neighbours(policy):
  many = speculate(jax.random.key(5), policy=policy, rows=16, **SETTINGS)
  few = speculate(jax.random.key(5), policy=policy, rows=3, **SETTINGS)
  np.testing.assert_array_equal(many.tokens[:3], few.tokens)
  first_rows = jax.tree.map(lambda x: x[:3], many.statistics)
  chex.assert_trees_all_close(first_rows, few.statistics, rtol=1e-5)


def one_by_one(condition, body, carry):
  """The Python loop, of compiled bodies, but for those that are loops themselves."""
  body = body if body.__name__ == "alternate" else jax.jit(body)
  return python_loop(condition, body, carry)


@pytest.mark.parametrize("policy", [FIXED, SURE], ids=["fixed", "sure"])
def test_compiled_loop_equals_the_python_loop(policy):
  settings = {**SETTINGS, "policy": policy, "rows": 3, "length": 5}
  compiled = speculate(jax.random.key(6), **settings)
  eager = speculate.__wrapped__
  watched = eager(jax.random.key(6), loop=one_by_one, **settings)
  np.testing.assert_array_equal(compiled.tokens, watched.tokens)
  chex.assert_trees_all_close(compiled.statistics, watched.statistics, rtol=1e-5)


def test_batches_of_one_shape_compile_once():
  policy = ROWS_OWN
  chex.clear_trace_counter()

  @jax.jit
  @chex.assert_max_traces(n=1)
  def decode(key):
    return speculate(key, policy=policy, rows=4, **SETTINGS).tokens

  assert len({decode(jax.random.key(seed)).tobytes() for seed in range(5)}) == 5


# ---- The length. ----


def propose(policy, sampling, rows):
  """Drafts of rows that have one token of output, and the drafter's state after."""
  spec, state = prepare(jax.random.key(1), policy, rows, 5, 40, sampling)
  known = 2 + jnp.arange(rows) % 4
  uniforms = jax.random.uniform(jax.random.key(2), (rows, 5, 1))
  sequences = state.sequences.at[:, 1].set(known)
  state = state.replace(sequences=sequences, lengths=jnp.full(rows, 2))
  return known.tolist(), *drafted(spec, state, uniforms)


def drafted(spec, state, uniforms):
  """A proposal, and the drafter's state after it."""
  propose = lambda *args: spec.drafter.propose(spec.context, *args)
  return jax.jit(propose)(state, uniforms)


@pytest.mark.parametrize("sampling", [GREEDY, Sampling(0.7, top_k=3)], ids=str)
def test_a_draft_ends_where_no_token_is_likely(sampling):
  known, proposal, _ = propose(Confidence(0.45), sampling, 64)
  # Greedy distributions are one-hot: there confidence is the probability at temperature
  # 1.
  distribution = DRAFT.distribution(Sampling() if sampling.greedy else sampling)
  for first, tokens, size in zip(
    known, proposal.tokens.tolist(), proposal.num_valid.tolist(), strict=True
  ):
    assert all(distribution((first, *tokens[:i])).max() >= 0.45 for i in range(size))
    has_ended = size > 0 and tokens[size - 1] == 1
    next_probs = distribution((first, *tokens[:size]))
    assert size == 5 or has_ended or next_probs.max() < 0.45
    assert 1 not in tokens[: size - 1]
  assert len(set(proposal.num_valid.tolist())) > 1


def test_drafting_ends_with_the_last_row_that_goes_on():
  _, proposal, after = propose(Confidence(0.5), GREEDY, 4)
  longest = int(proposal.num_valid.max())
  assert proposal.num_valid.min() < longest < 5
  # Two tokens were known, and each drafted one was read to ask about the next.
  np.testing.assert_array_equal(after.cache.index, 2 + longest)
  assert not proposal.tokens[:, longest + 1 :].any()
  assert proposal.draft_probs is None  # Greedy tokens are certain.


@POLICIES
def test_limit_cuts_nothing_more_and_live_rows_draft(policy):
  lengths = set()
  for before, sizes, _, info in iterations(policy, rows=64):
    live = ~np.asarray(before.ended)
    room = 13 + 1 - np.asarray(before.lengths)
    np.testing.assert_array_equal(info.drafted, sizes * live)
    assert not sizes[~live].any()
    assert (sizes[live] < room[live]).all()
    lengths |= set(sizes[live].tolist())
  assert lengths >= {0, 1, 2, 3}


def test_limit_cuts_nothing_of_a_draft_that_ends_the_sequence():
  spec, state = prepare(jax.random.key(1), ROWS_OWN, 64, 5, 13, Sampling())
  uniforms = jax.random.uniform(jax.random.key(4), (64, 5, 1))
  proposal, _ = drafted(spec, state, uniforms)
  limited = limit(proposal, 13 - state.lengths, 1)
  np.testing.assert_array_equal(limited.num_valid, proposal.num_valid)
  assert ((proposal.tokens == 1).any(axis=1) & (proposal.num_valid < 5)).any()


def test_counts_are_what_was_tried_and_accepted():
  accepted = tried = np.zeros(64)
  for before, _, after, info in iterations(ROWS_OWN, rows=64):
    live = ~np.asarray(before.ended)
    accepted = np.where(live, 0.9 * accepted + info.accepted, accepted)
    tried = np.where(live, 0.9 * tried + info.acceptance_positions, tried)
    counts = after.policy_state
    np.testing.assert_allclose(counts.accepted[live], accepted[live], rtol=1e-5)
    np.testing.assert_allclose(counts.tried[live], tried[live], rtol=1e-5)


def test_an_easy_row_ends_with_long_drafts_and_a_hard_one_with_short():
  target = HashModel(1, vocab_size=6, eos_bias=-30.0)

  class EasyAndHard(HashModel):
    """The target itself in row 0, and another model in row 1."""

    def extend(self, *args):
      easy, _, _ = target.extend(*args)
      hard, features, cache = super().extend(*args)
      return easy.at[1:].set(hard[1:]), features, cache

  draft = EasyAndHard(2, vocab_size=6, eos_bias=-30.0)
  policy = by_row(1.0, 1.12, 1.26, 1.36, 1.54, 1.64, 1.74, 1.84)
  sizes, endless = [], {"length": 60, "gamma": 7, "sampling": GREEDY}
  for before, *_ in iterations(policy, 2, target=target, draft=draft, **endless):
    sizes.append(policy.most(before.policy_state, 2, tuple(range(8))).tolist())
  assert sizes[0] == [3, 3]
  assert sizes[6] == [7, 1]
