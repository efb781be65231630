"""The relations of a tree's nodes, against walks along the parents in Python."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from specdec_t5x.core.rules.traversal import post_order
from specdec_t5x.core.tree import Tree, chain
from specdec_t5x.drafters.tree_draft import delayed
from tests.exactness.test_trees import canonical


def line(tree, node):
  """Returns the nodes from the root to `node`."""
  return [*line(tree, tree.parents[node - 1]), node] if node else [0]


def leaves_first(tree, top=0):
  below = [n for n, parent in enumerate(tree.parents, 1) if parent == top]
  return [*(x for child in below for x in leaves_first(tree, child)), top]


@pytest.mark.parametrize(
  "tree", [Tree((0,)), *map(Tree, canonical(5)), delayed(2, 3, 5)], ids=str
)
def test_relations_match_the_parents(tree):
  nodes = range(tree.size + 1)
  sees = [[other in line(tree, node) for other in nodes] for node in nodes]
  np.testing.assert_array_equal(tree.sees, sees)
  np.testing.assert_array_equal(tree.depths, [len(line(tree, n)) - 1 for n in nodes])
  assert tree.depth == max(tree.depths)
  assert post_order(tree).tolist() == leaves_first(tree)


@pytest.mark.parametrize(
  "tree", [chain(3), delayed(2, 3, 5), Tree((0, 0, 1, 2, 2, 4))], ids=str
)
def test_paths_match_the_parents(tree):
  nodes = jnp.arange(tree.size + 1)
  paths, depths, parents = jax.jit(
    lambda nodes: (tree.path(nodes), tree.depth_of(nodes), tree.of_parents(nodes[None]))
  )(nodes)
  for node in nodes.tolist():
    path = line(tree, node)
    assert paths[node, : len(path)].tolist() == path
  np.testing.assert_array_equal(depths, tree.depths)
  np.testing.assert_array_equal(parents[0], tree.parents)


def test_chains_and_delayed_trees_by_hand():
  assert chain(3).parents == (0, 1, 2)
  assert chain(3).is_chain
  assert delayed(0, 2, 2).parents == (0, 0, 1, 2)
  assert delayed(1, 2, 3).parents == (0, 1, 1, 2, 3)
  assert delayed(0, 1, 4) == delayed(4, 3, 4) == chain(4)
  assert not delayed(0, 2, 1).is_chain


@pytest.mark.parametrize("parents", [(1,), (0, 1, 0), (-1,)])
def test_invalid_trees_are_refused(parents):
  with pytest.raises(ValueError, match="must be earlier nodes"):
    Tree(parents)
