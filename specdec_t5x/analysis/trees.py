"""Which tree to draft: the most tokens a call that so many nodes can give.

A node is reached where the target's token is, at each depth, the one of that rank among
the drafter's. If the chance of that, a(d, r), depends on depth and rank alone, then

  E = 1 + sum over nodes of prod_d a(d, rank of the path's node at depth d)

and the best N nodes are those of the largest products, for no node's is above its
parent's: what Sequoia's dynamic programme (arXiv 2402.12374, section 3.1) finds where
a(d, r) is the same at all depths, and DDTree's heap (arXiv 2604.12989) for
distributions that do not depend on the path.

Shapes: D depths, R ranks.
"""

import heapq

import numpy as np
from jaxtyping import Float

from specdec_t5x.core.checks import is_whole
from specdec_t5x.core.tree import Tree


def best_tree(acceptance: Float[np.ndarray, "D R"], size: int) -> Tree:
  """Returns the tree of `size` drafted nodes that gives the most tokens a call.

  Args:
    acceptance: a(d, r), falling in r, each row's sum at most 1.
    size: nodes, the root not counted.

  Raises:
    ValueError: where `size` is no number of nodes, or there are not as many.
  """
  if not is_whole(size, 1):
    raise ValueError(f"A tree has a whole number of nodes, at least 1, got {size!r}.")
  depths, ranks = acceptance.shape
  # A node's value, negative for the heap; its path of ranks; its parent's value.
  nodes, taken = [(-float(acceptance[0, 0]), (0,), -1.0)], []
  while nodes and len(taken) < size:
    value, path, above = heapq.heappop(nodes)
    taken.append(path)
    for before, other in ((above, (*path[:-1], path[-1] + 1)), (value, (*path, 0))):
      if len(other) <= depths and other[-1] < ranks:
        chance = float(acceptance[len(other) - 1, other[-1]])
        heapq.heappush(nodes, (before * chance, other, before))
  if len(taken) < size:
    raise ValueError(
      f"There are {len(taken)} nodes of {depths} depths and {ranks} ranks, fewer than "
      f"{size}. Ask for fewer nodes, or measure more ranks."
    )
  return _tree_of(taken)


def tokens_per_call(tree: Tree, acceptance: Float[np.ndarray, "D R"]) -> float:
  """Returns E, the tokens that a call of the target gives with a tree."""
  reached, children = [1.0], {}
  for node, parent in enumerate(tree.parents, 1):
    rank = children.get(parent, 0)
    children[parent] = rank + 1
    chance = float(acceptance[tree.depths[node] - 1, rank])
    reached.append(reached[parent] * chance)
  return sum(reached)


def _tree_of(paths: list[tuple[int, ...]]) -> Tree:
  """Returns the tree of these paths of ranks, which hold all their beginnings."""
  # Level by level, and within one in the order of their parents: by depth, then rank.
  ordered = sorted(paths, key=lambda path: (len(path), path))
  number = {(): 0, **{path: node for node, path in enumerate(ordered, 1)}}
  return Tree(tuple(number[path[:-1]] for path in ordered))
