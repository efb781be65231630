"""One budget, or one length, for two rows.

Both outputs together have the product of the targets' distributions; scores that may
not be read are noticed.
"""

import collections
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from specdec_t5x.core.distributions import Sampling
from specdec_t5x.decoding.cost_aware import Counts
from specdec_t5x.decoding.step import decisions
from specdec_t5x.drafters.draft_model import DraftModel
from specdec_t5x.drafters.heads import HeadDraft
from specdec_t5x.network.heads import HeadsConfig
from specdec_t5x.policies import Budget, CostAware
from tests.exactness import two_rows
from tests.exactness.driving import assert_all_are, drive, outputs_of, probs_along
from tests.exactness.enumeration import Setting, explore, target_probs
from tests.exactness.oracles import JUDGES
from tests.exactness.planting import jit
from tests.hash_model import EasyAndHard, HashHeads, HashModel

# ---- What a score may read, and how far it may be followed. ----


def missed(rule, admit, pairs=12):
  """The most that any of some random pairs misses, and which shares the rows had."""
  found, rng, shares = [], np.random.default_rng(0), collections.Counter()

  def counted(*known):
    shares[tuple(admit(*known))] += 1
    return admit(*known)

  for _ in range(pairs):
    tables = rng.dirichlet(np.ones(2), (4, 8))
    # A distribution for each prefix, whose tokens are the digits of its number.
    p, q, other_p, other_q = (
      lambda prefix, table=table: table[int("1" + "".join(map(str, prefix)), 2)]
      for table in tables
    )
    settings = [
      Setting(*models, JUDGES[rule], (0, 1), 3, eos_id=-1)
      for models in ((p, q), (other_p, other_q))
    ]
    expected = two_rows.product(*map(target_probs, settings))
    joint = two_rows.joint_probs(settings, counted)
    found.append(two_rows.total_variation(joint, expected))
  return max(found), shares


def speed_of(*costs):
  return lambda drafted: 1 / costs[drafted]


EARLY_STOP = speed_of(1, 1.3, 1.55, 1.8, 2.0)
GLOBAL_SEARCH = speed_of(1, 1.6, 1.8, 2.0, 2.0)
RULES = pytest.mark.parametrize("rule", ["token", "block"])


@RULES
@pytest.mark.parametrize(
  ("admit", "is_exact"),
  [
    (two_rows.likeliest(1, two_rows.known_before), True),
    (two_rows.likeliest(2, two_rows.known_before), True),
    (two_rows.until_it_falls(two_rows.known_before, EARLY_STOP), True),
    (two_rows.likeliest(1, two_rows.of_the_token), False),
    (two_rows.likeliest(2, two_rows.of_the_token), False),
    (two_rows.best_of_all(two_rows.known_before, GLOBAL_SEARCH), False),
  ],
  ids=["first", "first two", "early stop", "TETRIS, 1", "TETRIS, 2", "global search"],
)
def test_a_token_is_admitted_by_what_is_known_before_it_is_drawn(rule, admit, is_exact):
  """A token's own score, or a search of later ones, gives another distribution."""
  most, shares = missed(rule, admit)
  assert most < 1e-12 if is_exact else 0.1 < most < 0.3
  assert len(shares) > 1


# ---- The compiled loop under a `Budget`, and under one length for all rows. ----


SHORT = Budget((1.0, 1.15, 1.3, 1.25, 1.5), 0.6, 1.0, decay=0.8)
LONG = Budget((1.0, 1.1, 1.2, 1.3, 1.2, 1.4, 1.6), 0.6, 1.0, decay=0.8)
# Two tokens; none after a rejection at once, and then two again.
SAME = CostAware((1.0, 1.75, 2.3), 0.8, prior_weight=1.0, decay=0.1)
TOP_K = Sampling(1.0, top_k=2)
# Vocabulary, policy, gamma, room.
SIZES = [(3, SHORT, 2, 5), (2, LONG, 3, 5)]
SHARED = (3, SAME, 2, 5)


@functools.cache
def paths_of(size, rule="token", sampling=TOP_K):
  """Every path of whole decodes of two rows, and how these are set."""
  vocab_size, policy, gamma, room = size
  target = HashModel(3, vocab_size, eos_bias=-1.0)
  draft = EasyAndHard(4, vocab_size, eos_bias=-1.0, target=target)
  p, q = (model.distribution(sampling) for model in (target, draft))
  judge, tree = JUDGES["greedy" if sampling.greedy else rule], tuple(range(gamma))
  settings = [Setting(p, each, judge, tree, room) for each in (p, q)]
  run = lambda world: two_rows.decode(world, settings, policy)
  return draft, settings, list(explore(run))


def assert_both_rows_are_exact(size, rule="token", sampling=TOP_K):
  draft, settings, paths = paths_of(size, rule, sampling)
  _, policy, gamma, _ = size
  drafter = DraftModel(draft, gamma)
  assert_exact(settings, paths, draft.target, drafter, sampling, rule, policy)


def assert_exact(settings, paths, target, drafter, sampling, rule, policy):
  """Driven along every path, within float32's margin of 1e-6."""

  def both(uniforms):
    return drive(uniforms, target, drafter, sampling, rule, policy)

  count, room = decisions(drafter), settings[0].max_length
  run = jit(jax.vmap(both))
  found = probs_along(paths, run, count, room, rows=(two_rows.ROWS,))
  assert_all_are(found, two_rows.product(*map(outputs_of, settings)))


SURE = HashHeads(4, 3, HeadsConfig("medusa", 2, 1, confident=True), reads_path=False)
# What was accepted so far never keeps them from drafting.
SAID = Budget((1.0, 1.15, 1.3, 1.25, 1.5), 0.9, 1e6)


def assert_sure_rows_are_exact():
  """Of heads that say how likely their tokens are to be accepted."""
  target = HashModel(3, vocab_size=3)
  known = {"given": lambda *known: known, "stops": lambda prefix, _: not prefix}
  models = (model.distribution(TOP_K) for model in (target, SURE))
  settings = [Setting(*models, JUDGES["token"], (0, 1), 6, **known)] * 2
  paths = list(
    explore(lambda world: two_rows.decode(world, settings, SAID, SURE.sure()))
  )
  assert_exact(settings, paths, target, HeadDraft(SURE), TOP_K, "token", SAID)


def test_rows_that_share_a_budget_are_exact_together():
  """`checks` has a shorter budget, one by what heads say, and one length for both."""
  assert_both_rows_are_exact(SIZES[1], "block", Sampling(0.6))


@pytest.mark.parametrize("size", SIZES, ids=["short", "long"])
def test_the_rows_shares_differ_and_change(size, monkeypatch):
  found, shares = set(), two_rows.shares
  watched = lambda *known: found.add(tuple(shares(*known))) or shares(*known)
  monkeypatch.setattr(two_rows, "shares", watched)
  paths_of.__wrapped__(size)
  assert {(0, 0)} < found
  assert any(easy > hard for easy, hard in found)
  assert any(easy < hard for easy, hard in found), "the easy row is done"


def test_the_shared_length_is_none_after_a_rejection(monkeypatch):
  found, same_length = [], two_rows.same_length
  watched = lambda *known: found.append(same_length(*known)) or found[-1]
  monkeypatch.setattr(two_rows, "same_length", watched)
  paths_of.__wrapped__(SHARED)
  assert [2, 2] in found
  assert [0, 0] in found


def test_shares_are_the_best_of_all_that_follow_survival():
  rng, tree = np.random.default_rng(0), (0, 1, 2)
  for _ in range(30):
    costs = 1 + np.cumsum(rng.uniform(0.02, 0.3, (2, 3)), axis=1)
    alone, even = costs.min(axis=0), costs.max(axis=0)
    policy = Budget((1.0, *alone.tolist(), *even.tolist()), 0.7)
    tried = rng.integers(0, 6, 2)
    accepted = rng.binomial(tried, rng.uniform(size=2))
    left = rng.integers(0, 6, 2)
    settings = [Setting(None, None, None, tree, int(each)) for each in left]
    history = [list(zip(accepted, tried, strict=True))]
    expected = two_rows.shares(policy, settings, [(), ()], history)
    known = Counts(*(jnp.asarray(x, jnp.float32) for x in (accepted, tried)))
    found = policy.within(known, jnp.asarray(left), (0, 1, 2, 3))
    np.testing.assert_array_equal(found, expected)
