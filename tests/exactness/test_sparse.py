"""Truncated drafts, local or over a link, keep the target's distribution."""

import pytest

from specdec_t5x.contrib.truncation import Truncation
from specdec_t5x.core.distributions import Sampling
from specdec_t5x.core.tree import chain
from tests.contrib.link.local import Liar, Local, drafting_of, honest
from tests.exactness.driving import assert_the_loop_is_exact
from tests.exactness.test_loop import DRAFT, SMALL_DRAFT, SMALL_TARGET, TARGET
from tests.hash_model import SparseHash

CUT = Truncation(2)
TOP_P = Sampling(1.0, top_p=0.7)


@pytest.mark.parametrize(
  ("cut", "rule", "sampling"),
  [
    (Truncation(1), "block", Sampling()),
    (Truncation(0), "token", TOP_P),
    (Truncation(4, 0.7), "token", Sampling()),
  ],
  ids=str,
)
def test_a_truncated_draft_keeps_the_distribution(cut, rule, sampling):
  setting = (TARGET, SparseHash(DRAFT, cut), rule, chain(2), 4)
  assert_the_loop_is_exact(setting, sampling)


def linked(answer, cut=CUT):
  draft = SparseHash(SMALL_DRAFT, cut, Local.of(answer))
  return (SMALL_TARGET, draft, "token", chain(2), 4)


def test_a_link_keeps_the_distribution():
  setting = linked(honest(SMALL_DRAFT), Truncation(0))
  assert_the_loop_is_exact(setting, TOP_P)
  counts = setting[1].remote.counts()
  assert counts["requests"] >= 2
  assert counts["lost"] == 0


def test_a_link_keeps_the_distribution_if_the_remote_drew_from_another_distribution():
  """The local side redraws tokens from the distributions that the remote sent."""
  target, draft, rule, *_ = linked(drafting_of(SMALL_DRAFT, Liar).answer)
  assert_the_loop_is_exact((target, draft, rule, chain(1), 3), Sampling())
  assert draft.remote.counts()["lost"] == 0
