"""What policies choose; whatever they do, outputs at T = 0 are plain decoding's."""

import dataclasses
import functools

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from specdec_t5x.analysis.theory import expected_tokens, walltime_improvement
from specdec_t5x.build import longest, policy_for
from specdec_t5x.contrib.heads import HeadDraft
from specdec_t5x.contrib.layer_skip import LayerSkip
from specdec_t5x.contrib.sparse import SparseDraft
from specdec_t5x.core.distributions import GREEDY, Sampling
from specdec_t5x.core.rules import RULES
from specdec_t5x.decoding import generate as loop_module
from specdec_t5x.decoding.baseline import Plain
from specdec_t5x.decoding.cost_aware import Counts
from specdec_t5x.decoding.decoders import SpeculativeDecoder
from specdec_t5x.decoding.generate import generate, generate_plain
from specdec_t5x.decoding.policy import Fixed, Policy
from specdec_t5x.decoding.state import no_info, row_keys
from specdec_t5x.drafters.copy import Copy
from specdec_t5x.drafters.draft_model import DraftModel
from specdec_t5x.drafters.quantized import Quantized
from specdec_t5x.drafters.tree_draft import TreeDraft
from specdec_t5x.native.distributions import adjusted_probs
from specdec_t5x.network.functional import network_for
from specdec_t5x.network.heads import HeadsConfig
from specdec_t5x.policies import POLICIES, CostAware, get_policy
from tests.decoding.test_generate import output_lengths
from tests.hash_model import HashHeads, HashModel, python_loop, speculation
from tests.t5x_bridge import tiny

TARGET, DRAFT = (HashModel(seed, vocab_size=6, eos_bias=-1.0) for seed in (1, 2))
GAMMA, ROOM, ROWS = 3, 21, 6
TURNS = CostAware((1.0, 1.35, 1.55, 1.8), 0.6, prior_weight=1.0, decay=0.5)


@dataclasses.dataclass(frozen=True)
class Alternating(Policy):
  """Rests once after so many iterations that draft, again and again."""

  drafts: int = 1

  may_rest = True

  def start(self, rows):
    return jnp.zeros(rows, jnp.int32)

  def lengths(self, policy_state, rows, choices):
    del rows
    rests = policy_state % (self.drafts + 1) == self.drafts
    return jnp.where(rests, 0, choices[-1]).astype(jnp.int32)

  def update(self, policy_state, info):
    del info
    return policy_state + 1


PATTERNS = {
  "always rests": CostAware((1.0, 9.0, 9.0, 9.0)),
  "takes turns": TURNS,
  "rows' own": dataclasses.replace(TURNS, by_row=True),
  "told two": Fixed(2),
}


def start(policy, sampling=GREEDY):
  keys, drafter = row_keys(jax.random.key(0), ROWS), DraftModel(DRAFT, GAMMA)
  given = TARGET, drafter, RULES["token"], sampling, keys, ROOM
  spec, state = speculation(*given, policy=policy)
  # Rows of several beginnings, whose outputs end at several places.
  firsts = 2 + jnp.arange(ROWS) % 4
  return spec, state.replace(
    sequences=state.sequences.at[:, 1].set(firsts), lengths=state.lengths + 1
  )


def decode(policy, sampling=GREEDY, loop=jax.lax.while_loop):
  return generate(*start(policy, sampling), loop)


@functools.cache
def compiled(policy, sampling=GREEDY):
  """What the compiled loop decodes; each program is built once for all tests."""
  return jax.jit(lambda: decode(policy, sampling))()


@functools.cache
def plain():
  _, state = start(Fixed())
  how = Plain(TARGET.extend, GREEDY, ROOM, 1, adjusted_probs)
  return jax.jit(lambda: generate_plain(how, state))()


# ---- Outputs and statistics. ----


@pytest.mark.parametrize("policy", PATTERNS.values(), ids=PATTERNS)
def test_greedy_outputs_are_those_of_the_fixed_length_and_of_plain_decoding(policy):
  decoded, fixed = compiled(policy), compiled(Fixed())
  np.testing.assert_array_equal(fixed.tokens, plain().tokens)
  np.testing.assert_array_equal(decoded.tokens, plain().tokens)
  np.testing.assert_allclose(decoded.scores, plain().scores, rtol=1e-5)
  lengths = output_lengths(np.asarray(decoded.tokens))
  assert len(set(lengths.tolist())) > 2, "rows end at several places"


@pytest.mark.parametrize(
  ("name", "sampling"),
  [*((name, GREEDY) for name in PATTERNS), ("takes turns", Sampling())],
  ids=str,
)
def test_plain_turns_are_counted(name, sampling):
  policy = PATTERNS[name]
  decoded = compiled(policy, sampling)
  info = decoded.statistics
  # The first token was known.
  emitted = output_lengths(np.asarray(decoded.tokens)) - 1
  np.testing.assert_array_equal(info.emitted, emitted)
  # Each call adds its own token, but for calls whose draft ended the sequence.
  surplus = info.accepted + info.target_calls - info.emitted
  assert set(np.asarray(surplus).tolist()) <= {0, 1}
  np.testing.assert_allclose(info.log_prob, decoded.scores, rtol=1e-5)
  if name == "always rests":
    np.testing.assert_array_equal(info.target_calls, emitted)
    assert not info.drafted.any()
    assert not info.acceptance_positions.any()
  else:
    assert info.drafted.sum() > 0
    assert (info.target_calls < emitted).any()


def test_compiled_loop_equals_the_python_loop():
  found = compiled(TURNS, Sampling())
  watched, kinds = watch(lambda loop: decode(TURNS, Sampling(), loop))
  np.testing.assert_array_equal(found.tokens, watched.tokens)
  chex.assert_trees_all_close(found.statistics, watched.statistics, rtol=1e-5)
  assert kinds.count("speculate") > 2 < kinds.count("rest")


def watch(decode):
  """What is decoded by a loop in Python, and the kind of each of its turns."""
  kinds = []

  def loop(condition, body, carry):
    # Both inner loops are of the outer one's turns, which can't be compiled then.
    is_outer = body.__name__ == "take_turn"
    compiled = body if is_outer else jax.jit(body)

    def watched(carry):
      kinds.extend([] if is_outer else [body.__name__])
      return compiled(carry)

    return python_loop(condition, watched, carry)

  return decode(loop), kinds


# ---- What pays. ----


def counts_of(accepted, tried):
  return Counts(*(jnp.asarray(x, jnp.float32) for x in (accepted, tried)))


def chosen(policy, accepted, tried, lengths=None):
  """What rows of such counts draft next."""
  lengths = lengths or tuple(range(len(policy.seconds) or GAMMA + 1))
  return np.asarray(policy.lengths(counts_of(accepted, tried), len(tried), lengths))


@pytest.mark.parametrize("lengths", [tuple(range(8)), (0, 7), (0, 2, 6)], ids=str)
def test_it_chooses_the_length_of_most_tokens_a_second(lengths):
  rng = np.random.default_rng(0)
  for _ in range(50):
    seconds = np.cumsum([1.0, *rng.uniform(0.01, 0.6, size=len(lengths) - 1)])
    policy = CostAware(seconds.tolist())
    tried = rng.uniform(0, 9, size=4)
    accepted = tried * rng.uniform(size=4)
    alpha = (1.5 + accepted.sum()) / (2 + tried.sum())
    speeds = expected_tokens(alpha, np.array(lengths)) / seconds
    found = chosen(policy, accepted, tried, lengths)
    assert (found == found[0]).all(), "one length for the batch"
    speed = speeds[lengths.index(found[0])]
    np.testing.assert_allclose(speed, speeds.max(), rtol=1e-5)


def test_rows_have_the_lengths_that_are_best_for_each():
  tried = np.random.default_rng(0).uniform(0, 9, size=200).astype(np.float32)
  accepted = tried * np.linspace(0, 1, 200, dtype=np.float32)
  alpha = (1.5 + accepted) / (2 + tried)
  for cost in (0.0, 0.07, 0.31, 1.0):
    speeds = walltime_improvement(alpha[:, None], np.arange(8), cost)
    policy = CostAware([1 + cost * n for n in range(8)], by_row=True)
    found = chosen(policy, accepted, tried)
    np.testing.assert_array_equal(found, speeds.argmax(axis=1))


@pytest.mark.parametrize(
  ("policy", "counts", "length"),
  [
    (CostAware((1.0, 1.0, 1.0)), ([0.0, 9.0], [9.0, 9.0]), 2),
    (CostAware((1.0, 2.1, 3.2)), ([0.0, 9.0], [9.0, 9.0]), 0),
    (CostAware((1.0, 9.0, 9.0), by_row=True), ([0.0, 9.0], [9.0, 9.0]), 0),
    (CostAware([1.0] * 8), ([90.0], [100.0]), 7),
    # Length 3 fills the block of 4; the next width costs twice as much.
    (CostAware((1.0, 1.0, 1.1, 1.1, 2.2, 2.2, 2.2, 2.2)), ([90.0], [100.0]), 3),
  ],
  ids=["free", "dear", "dear by row", "surely free", "a block's cost"],
)
def test_what_costs_nothing_is_drafted_and_what_never_pays_is_not(
  policy, counts, length
):
  np.testing.assert_array_equal(chosen(policy, *counts), length)


@pytest.mark.parametrize(
  ("policy", "tried", "sizes"),
  [
    (CostAware((1.0, 1.5, 1.9)), 30.0, (0, 2)),
    (CostAware((1.0, 1.6, 1.7, 2.3), decay=0.9, by_row=True), 20.0, (0, 2)),
  ],
  ids=["batch", "row"],
)
def test_where_drafts_fail_it_rests_until_the_counts_have_decayed(policy, tried, sizes):
  counts, found = counts_of([0.0], [tried]), []
  lengths = tuple(range(len(policy.seconds)))
  for _ in range(300):
    found.append(int(policy.lengths(counts, 1, lengths)[0]))
    counts = policy.update(counts, no_info(1))
  assert (found[0], found[-1]) == sizes
  assert found == sorted(found)


def test_where_nothing_was_measured_it_drafts_all():
  for accepted, tried in [(0.0, 0.0), (0.0, 1e6), (9.0, 9.0)]:
    for policy in (CostAware(), CostAware(by_row=True)):
      assert chosen(policy, [accepted], [tried], (0, 1, 2, 5)) == 5
      assert not policy.may_rest
      assert policy.pays((0, 5))


def test_what_no_draft_gains_at_the_prior_is_never_tried():
  # 1.75 and 2.31 tokens at alpha 0.75, and what is tried should gain a fifth.
  lengths = 0, 1, 2
  assert CostAware((1.0, 1.45, 2.5)).pays(lengths)
  assert not CostAware((1.0, 1.47, 1.94)).pays(lengths)
  assert "Decoding plainly" in CostAware((1.0, 1.47, 1.94)).outlook(lengths)
  assert CostAware((1.0, 1.47, 1.94), prior_alpha=0.9).pays(lengths)
  # Of drafts of all or nothing: 1 + 0.75 + 0.5625 tokens.
  assert CostAware((1.0, 1.92)).pays((0, 2))
  assert not CostAware((1.0, 1.94)).pays((0, 2))


# ---- Drafters that can't go on after a rest. ----

APART = HeadDraft(HashHeads(4, 6, HeadsConfig("medusa", 3, 1), False))
# Three tokens or none.
PAYING = CostAware((1.0, 9.0, 9.0, 2.0), 0.8, prior_weight=1.0)


def rests(accepted, tried, has_rested=(False, False), ended=(False, False)):
  """Whether two rows rest of whose drafts so much was tried."""
  keys = row_keys(jax.random.key(0), 2)
  given = TARGET, APART, RULES["token"], GREEDY, keys, 40
  spec, state = speculation(*given, policy=PAYING)
  state = state.replace(
    policy_state=counts_of(accepted, tried),
    has_rested=jnp.array(has_rested),
    ended=jnp.array(ended),
  )
  return bool(loop_module._rests(spec, state))


# 2 tokens an iteration pay: 1 + a + a^2 + a^3 from a = 0.5437 on. The prior is 0.8.
@pytest.mark.parametrize(
  ("accepted", "tried", "so_far", "is_resting"),
  [
    ((0, 0), (0, 0), {}, False),
    ((2, 0), (3, 1), {}, False),  # 2.8 / 5 = 0.56
    ((1, 1), (3, 2), {}, True),  # 2.8 / 6 = 0.47
    ((0, 1), (1, 2), {}, True),  # 1.8 / 4 = 0.45
    # It goes on so until the rows that rested have ended; rows that have draft nothing.
    ((9, 9), (9, 9), {}, False),
    ((9, 9), (9, 9), {"has_rested": (True, False)}, True),
    ((9, 9), (9, 9), {"has_rested": (True, False), "ended": (True, False)}, False),
    ((9, 9), (9, 9), {"ended": (True, True)}, True),
  ],
  ids=str,
)
def test_it_rests_where_drafts_bring_less_than_they_cost(
  accepted, tried, so_far, is_resting
):
  assert rests(accepted, tried, **so_far) == is_resting


# ---- Which policy there is. ----

NETWORK = network_for(tiny.DRAFT)
SKIPPING, MODEL = LayerSkip(("mlp_0",)), DraftModel(NETWORK)
SPARSE, TREE = SparseDraft(NETWORK), TreeDraft(NETWORK)


@pytest.mark.parametrize(
  ("drafter", "named", "own"),
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
def test_the_policy_is_what_was_asked_for_or_what_is_usual(drafter, named, own):
  assert policy_for(drafter, None, None, is_word=True) == named
  assert policy_for(drafter, None, None, is_word=False) == own
  for is_word in (True, False):
    # A length that is given is drafted in each iteration.
    assert policy_for(drafter, None, 4, is_word) == Fixed()
    for gamma in (None, 4):
      assert policy_for(drafter, "auto", gamma, is_word) == CostAware()
      assert policy_for(drafter, TURNS, gamma, is_word) is TURNS


@pytest.mark.parametrize(
  "drafter",
  [MODEL, Copy(), SPARSE, SKIPPING, Quantized(), Quantized(4, 32)],
  ids=lambda part: type(part).__name__,
)
def test_a_gamma_of_the_drafters_own_is_drafted_like_one_that_is_asked_for(drafter):
  usual = [policy_for(drafter, None, None, is_word) for is_word in (True, False)]
  for gamma in (drafter.gamma, 2):
    given = dataclasses.replace(drafter, gamma=int(gamma))
    for is_word in (True, False):
      assert policy_for(given, None, None, is_word) == Fixed()
      assert policy_for(given, "auto", None, is_word) == policy_for(
        drafter, "auto", None
      )
  # A copy, and a copy with another field, have no gamma of their own.
  other = {"match": 2} if isinstance(drafter, Copy) else {}
  copied = dataclasses.replace(dataclasses.replace(drafter), **other)
  assert [policy_for(copied, None, None, word) for word in (True, False)] == usual
  assert policy_for(drafter, None, longest(None)) == Fixed()


def test_what_is_nearly_the_target_is_expected_to_be_right():
  expected, policy = CostAware(prior_alpha=0.9), CostAware()
  assert policy_for(Quantized(), "auto", 4) == policy_for(Quantized(), "auto", None)
  assert policy_for(Quantized(), "auto", None) == expected
  assert policy_for(Quantized(), policy, None) == policy  # As it was asked for.
  assert policy_for(Quantized(), None, None, is_word=False).prior_alpha == 0.9
  assert policy_for(Quantized(), None, 4) == Fixed()


def test_a_policy_has_a_name():
  assert {name: get_policy(name) for name in POLICIES} == {
    "auto": CostAware(),
    "fixed": Fixed(),
  }
  assert get_policy(TURNS) is TURNS


def test_settings_that_gin_gives_as_lists_are_hashed():
  assert hash(CostAware([1.0, 2.0])) == hash(CostAware((1.0, 2.0)))


# ---- What can't be. ----


def test_there_is_a_time_for_each_length():
  times = CostAware((1.0, 2.0, 3.0))
  times.check((0, 1, 2))
  CostAware().check((0, 7))
  target = network_for(tiny.TARGET)
  with pytest.raises(ValueError, match=r"needs 2 times, .* \(0, 3\) tokens, got 3"):
    SpeculativeDecoder(target, SparseDraft(NETWORK, 3), policy=times)


@pytest.mark.parametrize("name", ["budget", "confidence", "exit"])
def test_a_policy_that_was_removed_is_refused_with_what_replaces_it(name):
  message = rf"GAMMA_POLICY '{name}' was removed, .*failures.md\). Use 'auto'\."
  for make in (get_policy, lambda name: policy_for(MODEL, name, 3)):
    with pytest.raises(ValueError, match=message):
      make(name)


@pytest.mark.parametrize("length", [-1, 2.5, True])
def test_a_fixed_length_is_a_number_of_tokens(length, unchecked):
  with pytest.raises(ValueError, match=r"Fixed.length must be a whole number of at"):
    Fixed(length)
