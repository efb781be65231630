"""Drafts of a length that each row decides: the law of the compiled loop, as before."""

import numpy as np
import pytest

from specdec_t5x.core.distributions import GREEDY, Sampling
from specdec_t5x.core.tree import chain
from specdec_t5x.drafters.policies import Confidence, OnlineAlpha
from tests.exactness import lengths
from tests.exactness.driving import loop_paths
from tests.exactness.test_loop import (
  DRAFT,
  SMALL_DRAFT,
  SMALL_TARGET,
  TARGET,
  assert_the_loop_is_exact,
)

SURE = Confidence(0.35)
# A weak prior: what one draft came to changes the length of the next.
LEARNING = OnlineAlpha(0.13, (1.0, 1.05, 1.1), 0.5, prior_weight=1.0)

# target, draft, rule, the longest draft, room, siblings (none), policy.
SETTINGS = [
  (*models, rule, chain(gamma), room, "independent", policy)
  for models, rule, gamma, room, policy in [
    ((TARGET, DRAFT), "token", 2, 4, SURE),
    ((SMALL_TARGET, SMALL_DRAFT), "token", 7, 4, SURE),
    ((SMALL_TARGET, SMALL_DRAFT), "block", 3, 5, SURE),
    ((TARGET, TARGET), "block", 3, 5, SURE),
    ((SMALL_TARGET, SMALL_DRAFT), "token", 3, 6, LEARNING),
    ((SMALL_TARGET, SMALL_DRAFT), "block", 3, 5, LEARNING),
  ]
]


def name_of(setting):
  _, _, rule, tree, room, _, policy = setting
  return f"{rule}-gamma{tree.size}-room{room}-{type(policy).__name__}"


@pytest.mark.parametrize("setting", SETTINGS, ids=name_of)
def test_the_loop_keeps_the_target_s_law(setting):
  assert_the_loop_is_exact(setting, Sampling())


@pytest.mark.parametrize(
  "sampling", [Sampling(0.6), Sampling(1.0, top_p=0.7), GREEDY], ids=str
)
@pytest.mark.parametrize("policy", [SURE, LEARNING], ids=lambda p: type(p).__name__)
def test_it_keeps_it_however_it_is_sampled(policy, sampling):
  setting = (TARGET, DRAFT, "token", chain(3), 4, "independent", policy)
  assert_the_loop_is_exact(setting, sampling)


@pytest.mark.parametrize("setting", SETTINGS, ids=name_of)
def test_the_settings_have_drafts_of_several_lengths(setting):
  """Else they would be settings of `test_loop`."""
  target, draft, *rest = setting
  _, paths = loop_paths(target, draft, Sampling(), *rest)
  np.testing.assert_allclose(sum(path.probability for path in paths), 1)
  found = {drafted(path, rest[1].size) for path in paths if 1 not in path.result}
  assert len(found) > 1


def drafted(path, gamma):
  """How many tokens the first two drafts had."""
  numbers = [number for number, i in path.cells if i < gamma]
  return numbers.count(0), numbers.count(1)


def test_what_was_accepted_changes_the_next_length():
  histories = [], [(0, 1)], [(1, 2)], [(2, 2)]
  assert [lengths.best_length(LEARNING, 3, h) for h in histories] == [2, 1, 2, 3]
