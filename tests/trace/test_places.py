"""The origin of every token of an output: accepted, recovered or target."""

import numpy as np
import pytest

from specdec_t5x.core.tree import delayed
from specdec_t5x.drafters.draft_model import DraftModel
from specdec_t5x.drafters.tree_draft import TreeDraft
from specdec_t5x.trace import places
from specdec_t5x.trace.places import ACCEPTED, RECOVERED, KeepPlaces
from tests import observed


@pytest.mark.parametrize("seed", [0, 3, 5])
def test_greedy_places_equal_places_by_hand(seed):
  target, draft = observed.pair(seed)
  found = observed.decoded(KeepPlaces(), target, DraftModel(draft, observed.GAMMA))
  output, by_hand = observed.places_by_hand(target, draft)
  padding = [0] * (observed.LENGTH - len(output))
  assert found.tokens[0].tolist() == output + padding
  assert found.observed[0].tolist() == by_hand + padding


@pytest.mark.parametrize("is_tree", [False, True])
def test_sampled_places_agree_with_the_counts(is_tree):
  target, draft = observed.pair(3)
  tree = TreeDraft(draft, delayed(1, 2, observed.GAMMA))
  drafter = tree if is_tree else DraftModel(draft, observed.GAMMA)
  assert_counted(
    observed.decoded(KeepPlaces(), target, drafter, observed.AT_ONE, rows=64)
  )


def assert_counted(found):
  kept = np.asarray(found.observed)
  info = found.statistics

  def count(kind):
    return (kept == kind).sum(axis=1)

  np.testing.assert_array_equal(count(ACCEPTED), info.accepted)
  rejected = info.acceptance_positions - info.accepted
  np.testing.assert_array_equal(count(RECOVERED), rejected)
  assert info.accepted.sum() > 0 < rejected.sum()
  beyond = np.arange(observed.LENGTH) >= np.asarray(info.emitted)[:, None]
  assert not kept[beyond].any()


def test_resting_and_refilled_rows_have_separate_places():
  assert_counted(observed.of_networks(KeepPlaces()))


def _one_on(gained):
  return lambda kept, first, info: gained(kept, first + 1, info)


def _counted_twice(gained):
  return lambda kept, first, info: gained(
    kept, first, info.replace(acceptance_positions=info.acceptance_positions + 1)
  )


@pytest.mark.parametrize("fault", [_one_on, _counted_twice])
def test_a_planted_fault_fails(fault, monkeypatch):
  monkeypatch.setattr(places, "gained", fault(places.gained))
  with pytest.raises(AssertionError):
    test_greedy_places_equal_places_by_hand(3)


def test_several_decodes_are_refused():
  with pytest.raises(ValueError, match="NUM_DECODES must be 1"):
    KeepPlaces().check(None, 3)
