"""Finds the draft tree with the most tokens per call for a number of nodes.

A node is reached if, at each depth of the node's path, the target's token has the rank
of the path among the drafter's tokens. Let a(d, r) be the probability of rank r at
depth d. If a(d, r) depends on depth and rank alone, the expected number of tokens per
call is

  E = 1 + sum over nodes of prod_d a(d, rank of the path's node at depth d).

The best N nodes are the nodes with the largest products, because no node's product
exceeds the parent's product. Sequoia's dynamic programme (arXiv 2402.12374, section
3.1) finds the same tree if a(d, r) is the same at all depths. DDTree's heap (arXiv
2604.12989) finds the same tree for distributions that do not depend on the path.

Shapes: D depths, R ranks.
"""

import heapq

import numpy as np
from jaxtyping import Float

from specdec_t5x.core.knobs import is_whole
from specdec_t5x.core.tree import Tree


def best_tree(acceptance: Float[np.ndarray, "D R"], size: int) -> Tree:
  """Returns the tree of `size` drafted nodes with the most tokens per call.

  Args:
    acceptance: a(d, r), decreasing in r, with row sums of at most 1.
    size: number of nodes without the root.

  Raises:
    ValueError: if `size` is not a positive integer, or there are fewer nodes.
  """
  if not is_whole(size, 1):
    raise ValueError(
      f"A tree must have a whole number of nodes of at least 1, got {size!r}."
    )
  depths, ranks = acceptance.shape
  # Heap entries: value of a node, path of ranks, value of the parent. Values are
  # negative products, because the heap pops the smallest value.
  nodes = [(-float(acceptance[0, 0]), (0,), -1.0)]
  paths = []
  while nodes and len(paths) < size:
    value, path, parent_value = heapq.heappop(nodes)
    paths.append(path)
    sibling = (*path[:-1], path[-1] + 1)
    child = (*path, 0)
    for candidate, above in ((sibling, parent_value), (child, value)):
      depth = len(candidate)
      rank = candidate[-1]
      if depth <= depths and rank < ranks:
        chance = float(acceptance[depth - 1, rank])
        heapq.heappush(nodes, (above * chance, candidate, above))
  if len(paths) < size:
    raise ValueError(
      f"A tree of {size} nodes needs at least {size} candidate nodes, got {len(paths)} "
      f"of {depths} depths and {ranks} ranks. Ask for fewer nodes, or measure more "
      "ranks."
    )
  return _tree_of(paths)


def tokens_per_call(tree: Tree, acceptance: Float[np.ndarray, "D R"]) -> float:
  """Returns E, the expected tokens per call of the target with a tree."""
  reach_probs = [1.0]
  num_children = {}
  for node, parent in enumerate(tree.parents, 1):
    rank = num_children.get(parent, 0)
    num_children[parent] = rank + 1
    chance = float(acceptance[tree.depths[node] - 1, rank])
    reach_probs.append(reach_probs[parent] * chance)
  return sum(reach_probs)


def _tree_of(paths: list[tuple[int, ...]]) -> Tree:
  """Returns the tree of paths of ranks. `paths` includes all prefixes of each path."""
  # Nodes are numbered by depth, then in the order of the parents, then by rank.
  ordered = sorted(paths, key=lambda path: (len(path), path))
  number = {(): 0, **{path: node for node, path in enumerate(ordered, 1)}}
  return Tree(tuple(number[path[:-1]] for path in ordered))
