"""The choices of policies; with any policy, greedy outputs equal plain decoding's."""

import dataclasses
import functools

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from specdec_t5x import speed
from specdec_t5x.contrib.sparse import SparseDraft
from specdec_t5x.core.distributions import GREEDY, Sampling
from specdec_t5x.core.rules import RULES
from specdec_t5x.core.theory import expected_tokens
from specdec_t5x.decoding import loop as loop_module
from specdec_t5x.decoding.contracts import Policy
from specdec_t5x.decoding.loop import generate
from specdec_t5x.decoding.policies import CostAware, Counts, Fixed
from specdec_t5x.decoding.state import StepInfo, row_keys
from specdec_t5x.drafters.copy import Copy
from specdec_t5x.drafters.draft_model import DraftModel
from specdec_t5x.drafters.heads import HeadDraft
from specdec_t5x.drafters.of_target import LayerSkip, Quantized
from specdec_t5x.drafters.tree_draft import TreeDraft
from specdec_t5x.network.functional import network_for
from specdec_t5x.network.heads import HeadsConfig
from specdec_t5x.ways import policy_for
from tests.hash_model import (
  HashHeads,
  HashModel,
  output_lengths,
  python_loop,
  speculation,
)
from tests.t5x_bridge import tiny

TARGET, DRAFT = (HashModel(seed, vocab_size=6, eos_bias=-1.0) for seed in (1, 2))
GAMMA, ROOM, ROWS = 3, 21, 6
TURNS = CostAware((1.0, 1.35, 1.55, 1.8), 0.6, prior_weight=1.0, decay=0.5)


@dataclasses.dataclass(frozen=True)
class Alternating(Policy):
  """A policy that rests once after every `drafts` iterations that draft."""

  drafts: int = 1

  may_rest = True

  def start(self, rows, before=None, is_new=None):
    fresh = jnp.zeros(rows, jnp.int32)
    return fresh if is_new is None else jnp.where(is_new, fresh, before)

  def lengths(self, policy_state, choices):
    rests = policy_state % (self.drafts + 1) == self.drafts
    return jnp.where(rests, 0, choices[-1]).astype(jnp.int32)

  def update(self, policy_state, info):
    del info
    return policy_state + 1


def decode(loop=jax.lax.while_loop):
  keys = row_keys(jax.random.key(0), ROWS)
  drafter, rule = DraftModel(DRAFT, GAMMA), RULES["token"]
  ctx, state = speculation(TARGET, drafter, rule, Sampling(), keys, ROOM, policy=TURNS)
  # Rows have different first tokens, so outputs end at different places.
  sequences = state.sequences.at[:, 1].set(2 + jnp.arange(ROWS) % 4)
  state = state.replace(sequences=sequences, lengths=state.lengths + 1)
  return generate(ctx, state, loop)


# ---- Outputs and statistics ----


def test_compiled_loop_equals_the_python_loop():
  kinds = []

  def loop(condition, body, carry):
    if not isinstance(body, functools.partial):
      # The outer loop has the inner loops in its body, which can't be compiled.
      return python_loop(condition, body, carry)
    compiled = jax.jit(body)

    def watched(carry):
      kinds.append(body.args[0].__name__)
      return compiled(carry)

    return python_loop(condition, watched, carry)

  watched = decode(loop)
  result = jax.jit(decode)()
  np.testing.assert_array_equal(result.tokens, watched.tokens)
  chex.assert_trees_all_close(result.statistics, watched.statistics, rtol=1e-5)
  assert kinds.count("step") > 2 < kinds.count("plain_step")
  info = result.statistics
  # The first token was known at the start.
  emitted = output_lengths(np.asarray(result.tokens)) - 1
  np.testing.assert_array_equal(info.emitted, emitted)
  # A call adds the target's token, unless the draft ended the sequence.
  surplus = info.accepted + info.target_calls - info.emitted
  assert set(np.asarray(surplus).tolist()) <= {0, 1}


# ---- The lengths that pay ----


def counts_of(accepted, tried):
  return Counts(*(jnp.asarray(x, jnp.float32) for x in (accepted, tried)))


def chosen(policy, accepted, tried, lengths=None):
  """Returns the next draft lengths of rows with the counts."""
  lengths = lengths or tuple(range(len(policy.seconds) or GAMMA + 1))
  found = policy.lengths(counts_of(accepted, tried), lengths)
  return np.broadcast_to(found, len(tried))


@pytest.mark.parametrize("by_row", [False, True], ids=["batch", "row"])
@pytest.mark.parametrize("lengths", [tuple(range(8)), (0, 7), (0, 2, 6)], ids=str)
def test_the_length_with_the_most_tokens_per_second_is_chosen(lengths, by_row):
  rng = np.random.default_rng(0)
  for _ in range(50):
    seconds = np.cumsum([1.0, *rng.uniform(0.01, 0.6, size=len(lengths) - 1)])
    policy = CostAware(seconds.tolist(), by_row=by_row)
    tried = rng.uniform(0, 9, size=4)
    accepted = tried * rng.uniform(size=4)
    counts = np.array([accepted, tried])
    if not by_row:
      counts = counts.sum(axis=1, keepdims=True)
    alpha = (1.5 + counts[0]) / (2 + counts[1])
    speeds = expected_tokens(alpha[:, None], np.array(lengths)) / seconds
    result = chosen(policy, accepted, tried, lengths)
    places = np.searchsorted(lengths, result)
    found = np.broadcast_to(speeds, (4, len(lengths)))[np.arange(4), places]
    np.testing.assert_allclose(found, np.broadcast_to(speeds.max(axis=1), 4), rtol=1e-5)
    assert by_row or len(set(result)) == 1, "one length for the batch"


def test_tried_tokens_are_counted_and_old_counts_decay():
  info = StepInfo.zeros(2).replace(
    drafted=jnp.array([5, 4]),
    accepted=jnp.array([2, 4]),
    acceptance_positions=jnp.array([3, 4]),
  )
  counts = Counts(jnp.array([4.0, 0.0]), jnp.array([8.0, 2.0]))
  found = CostAware(decay=0.5).update(counts, info)
  np.testing.assert_array_equal(found.accepted, [4, 4])
  # Drafted tokens after the first rejected token were not tried.
  np.testing.assert_array_equal(found.tried, [7, 5])


def test_without_measured_times_the_longest_draft_is_chosen():
  for accepted, tried in [(0.0, 0.0), (0.0, 1e6), (9.0, 9.0)]:
    for policy in (CostAware(), CostAware(by_row=True)):
      assert chosen(policy, [accepted], [tried], (0, 1, 2, 5)) == 5
      assert not policy.may_rest
      assert speed.pays(policy, (0, 5))


def test_drafts_without_a_gain_at_the_prior_are_never_tried():
  # 1.75 and 2.31 tokens at alpha 0.75; a draft should gain a fifth to be tried.
  lengths = 0, 1, 2
  assert speed.pays(CostAware((1.0, 1.45, 2.5)), lengths)
  assert not speed.pays(CostAware((1.0, 1.47, 1.94)), lengths)
  assert "Decoding plainly" in speed.outlook(CostAware((1.0, 1.47, 1.94)), lengths)
  assert speed.pays(CostAware((1.0, 1.47, 1.94), prior_alpha=0.9), lengths)
  # Drafts of all or nothing: 1 + 0.75 + 0.5625 tokens.
  assert speed.pays(CostAware((1.0, 1.92)), (0, 2))
  assert not speed.pays(CostAware((1.0, 1.94)), (0, 2))
  # (1 + a) / (1.4 / 1.75 + b) with the encoders' times a and b per token.
  gains = {
    (0.0, 0.0): 1.25,
    (0.2, 0.2): 1.2,
    (0.2, 0.3): 1.2 / 1.1,
    (1.0, 1.0): 2 / 1.8,
  }
  for prepare, gain in gains.items():
    policy = CostAware((1.0, 1.4), prepare=prepare)
    assert speed.speedup(policy, 0.75, (0, 1)) == pytest.approx(gain)


# ---- Drafters that can't continue after a rest ----

APART = HeadDraft(HashHeads(4, 6, HeadsConfig("medusa", 3, 1)))
# Drafts have three tokens or no token.
PAYING = CostAware((1.0, 9.0, 9.0, 2.0), 0.8, prior_weight=1.0)


# 2 tokens an iteration pay: 1 + a + a^2 + a^3 from a = 0.5437 on. The prior is 0.8.
@pytest.mark.parametrize(
  ("accepted", "tried", "state", "is_resting"),
  [
    ((2, 0), (3, 1), {}, False),  # 2.8 / 5 = 0.56
    ((1, 1), (3, 2), {}, True),  # 2.8 / 6 = 0.47
    # Rows that rested draft nothing, so the rest goes on until these rows have ended.
    ((9, 9), (9, 9), {}, False),
    ((9, 9), (9, 9), {"has_rested": (True, False)}, True),
    ((9, 9), (9, 9), {"has_rested": (True, False), "ended": (True, False)}, False),
    ((9, 9), (9, 9), {"ended": (True, True)}, True),
  ],
  ids=str,
)
def test_rows_rest_if_drafts_cost_more_than_the_gain(
  accepted, tried, state, is_resting
):
  keys = row_keys(jax.random.key(0), 2)
  rule = RULES["token"]
  ctx, start = speculation(TARGET, APART, rule, GREEDY, keys, 40, policy=PAYING)
  state = {name: jnp.array(rows) for name, rows in state.items()}
  start = start.replace(policy_state=counts_of(accepted, tried), **state)
  assert loop_module._rests(ctx, start) == is_resting


# ---- The choice of a policy ----

NETWORK = network_for(tiny.DRAFT)
SKIPPING = LayerSkip(("mlp_0",))
MODEL = DraftModel(NETWORK)
SPARSE = SparseDraft(NETWORK)
TREE = TreeDraft(NETWORK)


@pytest.mark.parametrize(
  ("drafter", "named", "default"),
  [
    (MODEL, CostAware(), Fixed()),
    (APART, CostAware(), Fixed()),
    (Copy(), Fixed(), Fixed()),
    (SPARSE, Fixed(), Fixed()),
    (TREE, Fixed(), Fixed()),
    (SKIPPING, CostAware(), CostAware()),
  ],
  ids=lambda part: type(part).__name__,
)
def test_the_policy_is_the_requested_policy_or_the_default(drafter, named, default):
  assert policy_for(drafter, None, None, is_word=True) == named
  assert policy_for(drafter, None, None, is_word=False) == default
  for is_word in (True, False):
    # A given length is drafted in every iteration.
    assert policy_for(drafter, None, 4, is_word) == Fixed()
    for gamma in (None, 4):
      assert policy_for(drafter, "auto", gamma, is_word) == CostAware()
      assert policy_for(drafter, TURNS, gamma, is_word) is TURNS


@pytest.mark.parametrize(
  "drafter",
  [MODEL, Copy(), SPARSE, SKIPPING, Quantized()],
  ids=lambda part: type(part).__name__,
)
def test_a_drafter_s_gamma_is_drafted_like_a_requested_gamma(drafter):
  with_gamma = dataclasses.replace(drafter, gamma=drafter.tree.size)
  for is_word in (True, False):
    assert policy_for(with_gamma, None, None, is_word) == Fixed()
    auto = policy_for(drafter, "auto", None)
    assert policy_for(with_gamma, "auto", None, is_word) == auto


def test_a_rounded_target_has_a_high_prior_alpha():
  expected, policy = CostAware(prior_alpha=0.9), CostAware()
  assert policy_for(Quantized(), "auto", 4) == policy_for(Quantized(), "auto", None)
  assert policy_for(Quantized(), "auto", None) == expected
  # The requested policy is used, with ALPHA.
  assert policy_for(Quantized(), policy, None) == policy
  assert policy_for(Quantized(), policy, None, alpha=0.9) == expected
  assert policy_for(Quantized(), Fixed(), None, alpha=0.9) == Fixed()
  assert policy_for(Quantized(), None, None, is_word=False).prior_alpha == 0.9
  assert policy_for(Quantized(), None, 4) == Fixed()


def test_lists_from_gin_are_hashable_settings(unchecked):
  lists = CostAware([1.0, 2.0], prepare=[0.1, 0.2])
  assert hash(lists) == hash(CostAware((1.0, 2.0), prepare=(0.1, 0.2)))
  assert hash(LayerSkip(["mlp_0"], 4)) == hash(LayerSkip(("mlp_0",), 4))
  assert hash(Quantized(whole=["logits"], skip=["mlp_0"]))


# ---- Refusals ----


@pytest.mark.parametrize("prepare", [(), (0.1,), (0.1, -0.2), (0.1, float("nan"))])
def test_wrong_times_of_encoders_are_refused(prepare):
  with pytest.raises(ValueError, match=r"prepare must be two times .* Leave prepare"):
    CostAware((1.0, 2.0), prepare=prepare)


@pytest.mark.parametrize("length", [-1, 2.5, True])
def test_a_fixed_length_must_be_a_whole_number(length, unchecked):
  with pytest.raises(ValueError, match=r"Fixed.length must be a whole number of at"):
    Fixed(length)
