"""The best tree, compared with every tree."""

import numpy as np
import pytest

from benchmarks.trees import best_tree, tokens_per_call
from specdec_t5x.core.tree import Tree, chain
from tests.exactness.trees import canonical


def falling(seed, depths, ranks):
  """Returns chances that fall with the rank; the sum of a depth is below 1."""
  drawn = np.random.default_rng(seed).dirichlet(np.ones(ranks + 1), depths)
  return -np.sort(-drawn[:, :-1], axis=1)


@pytest.mark.parametrize("seed", range(6))
def test_no_tree_gives_more_tokens_per_call(seed):
  for size in range(1, 7):
    acceptance = falling(seed, depths=6, ranks=6)
    tree = best_tree(acceptance, size)
    every = [tokens_per_call(Tree(parents), acceptance) for parents in canonical(size)]
    assert tree.size == size
    assert tokens_per_call(tree, acceptance) == pytest.approx(max(every))


def test_tokens_per_call_by_hand():
  acceptance = np.array([[0.5, 0.25], [0.4, 0.1]])
  assert tokens_per_call(chain(2), acceptance) == pytest.approx(1 + 0.5 + 0.5 * 0.4)
  tree = Tree((0, 0, 1, 1, 2))
  expected = 1 + 0.5 + 0.25 + 0.5 * (0.4 + 0.1) + 0.25 * 0.4
  assert tokens_per_call(tree, acceptance) == pytest.approx(expected)


def test_depth_and_ranks_are_limited_to_the_measurements():
  acceptance = falling(1, depths=2, ranks=2)
  tree = best_tree(acceptance, 6)
  assert tree.depth == 2
  assert sorted(tree.parents) == [0, 0, 1, 1, 2, 2]
  with pytest.raises(ValueError, match="got 6 of 2 depths and 2 ranks"):
    best_tree(acceptance, 7)
  with pytest.raises(ValueError, match="at least 1, got 0"):
    best_tree(acceptance, 0)


def test_a_sure_drafter_gets_a_chain():
  acceptance = np.tile([[0.9, 0.05]], (4, 1))
  assert best_tree(acceptance, 4) == chain(4)
