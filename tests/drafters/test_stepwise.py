"""Adaptive gamma: how long drafts are, and what depends on it."""

import functools

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from specdec_t5x.analysis.theory import walltime_improvement
from specdec_t5x.core.distributions import GREEDY, Sampling
from specdec_t5x.core.rules import RULES
from specdec_t5x.core.types import Proposal
from specdec_t5x.decoding import widths
from specdec_t5x.decoding.generate import generate, python_loop
from specdec_t5x.decoding.state import row_keys
from specdec_t5x.decoding.step import limit, step
from specdec_t5x.drafters.adaptive import AdaptiveDraft
from specdec_t5x.drafters.draft_model import DraftModel
from specdec_t5x.drafters.policies import Confidence, Counts, OnlineAlpha
from tests.hash_model import HashModel, speculation

TARGET = HashModel(seed=1, vocab_size=6, eos_bias=-1.0)
DRAFT = HashModel(seed=2, vocab_size=6, eos_bias=-1.0)
SURE, ONLINE = Confidence(0.3), OnlineAlpha(0.1, (1.0, 1.02, 1.06, 1.14))
POLICIES = pytest.mark.parametrize(
  "policy", [SURE, ONLINE], ids=lambda policy: type(policy).__name__
)
SETTINGS = {"gamma": 5, "length": 13, "sampling": Sampling()}


def prepare(key, policy, rows, gamma, length, sampling, draft=DRAFT, target=TARGET):
  """The loop's settings and first state; policy None is the fixed length."""
  drafter = DraftModel(draft, gamma)
  if policy:
    drafter = AdaptiveDraft(draft, gamma, policy)
  keys = row_keys(key, rows)
  return speculation(target, drafter, RULES["token"], sampling, keys, length)


@functools.partial(
  jax.jit, static_argnames=("policy", "rows", "gamma", "length", "sampling", "loop")
)
def speculate(key, *, loop=jax.lax.while_loop, **settings):
  return generate(*prepare(key, **settings), loop)


def iterations(policy, rows, **settings):
  """Every iteration of a decode: the state before, the state after, and its counts."""
  settings = {**SETTINGS, **settings}
  spec, state = prepare(jax.random.key(3), policy, rows, **settings)
  one = jax.jit(lambda state: step(spec, state))
  while not state.ended.all():
    after, info = one(state)
    yield state, after, info
    state = after


# ---- The output. ----


@pytest.mark.parametrize("policy", [SURE, OnlineAlpha(0.1)], ids=["sure", "online"])
@pytest.mark.parametrize("gamma", [1, 3, 20])
def test_greedy_outputs_are_those_of_the_fixed_length(policy, gamma):
  # gamma 20 exceeds the room of 13 from the start.
  settings = {"rows": 3, "gamma": gamma, "length": 13, "sampling": GREEDY}
  key = jax.random.key(0)
  expected = speculate(key, policy=None, **settings).tokens
  np.testing.assert_array_equal(
    speculate(key, policy=policy, **settings).tokens, expected
  )


# Its drafts pay after a success alone, so few rows often rest where many do not.
SELDOM = OnlineAlpha(0.3, (1.0, 1.4, 1.5, 1.6))


@pytest.mark.parametrize(
  "policy", [SURE, ONLINE, SELDOM], ids=["sure", "online", "seldom"]
)
def test_a_row_does_not_depend_on_its_neighbours(policy):
  many = speculate(jax.random.key(5), policy=policy, rows=16, **SETTINGS)
  few = speculate(jax.random.key(5), policy=policy, rows=3, **SETTINGS)
  np.testing.assert_array_equal(many.tokens[:3], few.tokens)
  first_rows = jax.tree.map(lambda x: x[:3], many.statistics)
  chex.assert_trees_all_close(first_rows, few.statistics, rtol=1e-5)


def one_by_one(condition, body, carry):
  """The Python loop, of compiled bodies, but for those that are loops themselves."""
  body = body if body.__name__ == "take_turns" else jax.jit(body)
  return python_loop(condition, body, carry)


@POLICIES
def test_compiled_loop_equals_the_python_loop(policy):
  settings = {**SETTINGS, "policy": policy, "rows": 3, "length": 5}
  compiled = speculate(jax.random.key(6), **settings)
  eager = speculate.__wrapped__
  watched = eager(jax.random.key(6), loop=one_by_one, **settings)
  np.testing.assert_array_equal(compiled.tokens, watched.tokens)
  chex.assert_trees_all_close(compiled.statistics, watched.statistics, rtol=1e-5)


@POLICIES
def test_batches_of_one_shape_compile_once(policy):
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
  # Greedy laws are one-hot: there confidence is the probability at temperature 1.
  law = DRAFT.law(Sampling() if sampling.greedy else sampling)
  for first, tokens, size in zip(
    known, proposal.tokens.tolist(), proposal.num_valid.tolist(), strict=True
  ):
    assert all(law((first, *tokens[:i])).max() >= 0.45 for i in range(size))
    has_ended = size > 0 and tokens[size - 1] == 1
    next_law = law((first, *tokens[:size]))
    assert size == 5 or has_ended or next_law.max() < 0.45
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
  for before, after, info in iterations(policy, rows=64):
    live = ~np.asarray(before.ended)
    room = 13 + 1 - np.asarray(before.lengths)
    sizes = np.asarray(after.drafter_state.drafted)
    np.testing.assert_array_equal(info.drafted, sizes * live)
    assert not sizes[~live].any()
    assert (sizes[live] < room[live]).all()
    lengths |= set(sizes[live].tolist())
  assert lengths >= {0, 1, 2, 3}


def test_limit_cuts_nothing_of_a_draft_that_ends_the_sequence():
  spec, state = prepare(jax.random.key(1), ONLINE, 64, 5, 13, Sampling())
  uniforms = jax.random.uniform(jax.random.key(4), (64, 5, 1))
  proposal, _ = drafted(spec, state, uniforms)
  limited = limit(proposal, 13 + 1 - state.lengths, 1)
  np.testing.assert_array_equal(limited.num_valid, proposal.num_valid)
  assert ((proposal.tokens == 1).any(axis=1) & (proposal.num_valid < 5)).any()


def test_the_online_length_is_the_theory_s_best():
  tried = np.random.default_rng(0).uniform(0, 9, size=200).astype(np.float32)
  accepted = tried * np.linspace(0, 1, 200, dtype=np.float32)
  counts, alpha = (
    Counts(*map(jnp.asarray, (accepted, tried))),
    (1.5 + accepted) / (2 + tried),
  )
  for cost in (0.0, 0.07, 0.31, 1.0):
    speeds = walltime_improvement(alpha[:, None], np.arange(8), cost)
    policy = OnlineAlpha(cost)
    np.testing.assert_array_equal(policy.most(counts, 7), speeds.argmax(axis=1))


def test_the_online_length_minds_what_a_block_costs():
  sure = Counts(jnp.array([90.0]), jnp.array([100.0]))
  free = OnlineAlpha(0.0)
  assert free.most(sure, 7) == 7
  # Length 3 fills the block of 4; the next width costs twice as much.
  dear = OnlineAlpha(0.0, block_costs=(1.0, 1.0, 1.1, 2.2))
  assert dear.most(sure, 7) == 3
  never = OnlineAlpha(0.0, block_costs=(1.0, 9.0, 9.0, 9.0))
  assert never.most(sure, 7) == 0


def test_where_nothing_pays_nothing_is_drafted_until_the_counts_have_decayed():
  policy = OnlineAlpha(0.1, (1.0, 1.5, 2.0))
  counts, none = Counts(jnp.zeros(1), jnp.array([20.0])), jnp.zeros(1, jnp.int32)
  sizes = []
  for _ in range(40):
    sizes.append(int(policy.most(counts, 3)[0]))
    counts = policy.learned(counts, none, none)
  assert sizes[0] == 0 < sizes[-1]
  assert sizes == sorted(sizes)


def test_counts_are_what_was_tried_and_accepted():
  accepted = tried = np.zeros(64)
  for before, after, info in iterations(ONLINE, rows=64):
    live = ~np.asarray(before.ended)
    accepted = np.where(live, 0.9 * accepted + info.accepted, accepted)
    tried = np.where(live, 0.9 * tried + info.acceptance_positions, tried)
    counts = after.drafter_state.counts
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
  sizes, endless = [], {"length": 60, "gamma": 7, "sampling": GREEDY}
  for before, _, _ in iterations(ONLINE, 2, target=target, draft=draft, **endless):
    sizes.append(ONLINE.most(before.drafter_state.counts, 7).tolist())
  assert sizes[0] == [3, 3]
  assert sizes[6] == [7, 1]


# ---- The block. ----


def test_the_narrowest_block_that_holds_all_drafts_is_scored():
  assert widths.block_widths(1) == (1, 2)
  assert widths.block_widths(3) == (1, 2, 4)
  assert widths.block_widths(7) == (1, 2, 4, 8)
  assert widths.block_widths(9) == (1, 2, 4, 8, 10)

  def extend(cache, tokens):
    """Says in its logits how wide the block was, and what stood in it."""
    wide = jnp.full((*tokens.shape, 3), float(tokens.shape[1]))
    return wide, tokens[..., None] * 1.0, cache

  tokens, draft_probs = jnp.arange(10).reshape(2, 5), jnp.zeros((2, 5, 3))
  score = jax.jit(
    lambda sizes: widths.score(
      extend, None, jnp.array([7, 7]), Proposal.chain(tokens, draft_probs, sizes)
    )
  )
  for sizes, width in [((0, 0), 1), ((1, 0), 2), ((2, 1), 4), ((1, 3), 4), ((4, 5), 6)]:
    logits, features, _ = score(jnp.array(sizes))
    assert logits.shape == (2, 6, 3)
    np.testing.assert_array_equal(logits[:, :width], width)
    np.testing.assert_array_equal(logits[:, width:], 0)
    block = [[7, 0, 1, 2, 3, 4], [7, 5, 6, 7, 8, 9]]
    np.testing.assert_array_equal(features[:, :width, 0], np.array(block)[:, :width])


@pytest.mark.parametrize("name", RULES)
def test_no_rule_reads_beyond_what_counts(name):
  rng, rows, gamma, size = np.random.default_rng(0), 64, 5, 4
  p = rng.dirichlet(np.ones(size), (rows, gamma + 1)).astype(np.float32)
  q = rng.dirichlet(np.ones(size), (rows, gamma)).astype(np.float32)
  tokens, num_valid = rng.integers(size, size=(rows, gamma)), np.arange(rows) % gamma
  uniforms = jnp.asarray(rng.uniform(size=(rows, gamma + 1, 1)), jnp.float32)
  beyond = np.arange(gamma) >= num_valid[:, None]
  after = np.arange(gamma + 1) > num_valid[:, None]

  def verdict(p_beyond, q_beyond, token_beyond):
    proposal = Proposal.chain(
      jnp.asarray(np.where(beyond, token_beyond, tokens), jnp.int32),
      jnp.asarray(np.where(beyond[..., None], q_beyond, q)),
      jnp.asarray(num_valid, jnp.int32),
    )
    target_probs = jnp.asarray(np.where(after[..., None], p_beyond, p))
    return RULES[name].verify(target_probs, proposal, uniforms)

  expected = verdict(p, q, tokens)
  assert (np.asarray(expected.last) <= num_valid).all()
  for garbage in (0.0, 1.0, np.nan):
    chex.assert_trees_all_equal(verdict(garbage, garbage, 0), expected)
