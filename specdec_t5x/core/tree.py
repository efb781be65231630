"""Token trees: the shape of a draft, and the attention between nodes.

Node 0 is the root, the last known token. The drafted nodes 1 .. G come level by level,
siblings side by side, children of earlier nodes first, so parents never decrease.

Shapes: B rows, G drafted nodes, N = G + 1 nodes, D the depth of the deepest, K = D + 1.
"""

import dataclasses
import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Int

from specdec_t5x.core.knobs import KnobError, is_whole

# The size of `Tree.sees` is quadratic in the number of nodes.
_MOST_NODES = 4096


@dataclasses.dataclass(frozen=True)
class Tree:
  """The parents of G drafted nodes: a tuple, or an array with a tree for each row.

  >>> Tree((0, 0, 1)).depths.tolist()  # Two children of the root, one of the first.
  [0, 1, 1, 2]

  Attributes:
    parents: the parents of nodes 1 .. G, in non-decreasing order; each parent comes
      before the node.
  """

  parents: tuple[int, ...] | Int[Array, "B G"]

  def __post_init__(self):
    if not isinstance(self.parents, tuple):
      return
    _check_size(len(self.parents))
    pairs = itertools.pairwise((0, *self.parents))
    if not all(
      is_whole(parent, previous) and parent < node
      for node, (previous, parent) in enumerate(pairs, 1)
    ):
      raise ValueError(
        "A tree's parents must be earlier nodes (0 is the root) in ascending order, "
        f"got {self.parents}. A chain of three is (0, 1, 2)."
      )

  @property
  def is_static(self) -> bool:
    """Whether the tree is known when programs are compiled."""
    return isinstance(self.parents, tuple)

  @property
  def is_chain(self) -> bool:
    """Whether each node is the only child of the node before."""
    return self.is_static and self.parents == tuple(range(self.size))

  @property
  def size(self) -> int:
    """G, the number of drafted nodes."""
    return len(self.parents) if self.is_static else self.parents.shape[1]

  @property
  def depth(self) -> int:
    """D, or the largest D that is possible if the tree is not static."""
    return int(self.depths.max()) if self.is_static else self.size

  @property
  def sees(self) -> Bool[Array | np.ndarray, "*B N N"]:
    """The nodes that each node sees: the node and all ancestors."""
    return _static_sees(self.parents) if self.is_static else _sees(self.parents)

  @property
  def depths(self) -> Int[Array | np.ndarray, "*B N"]:
    """The distance of each node from the root."""
    return self.sees.sum(axis=-1) - 1

  def of_parents(self, array: Array) -> Array:
    """Gathers [B, N, ...] at the parent of each drafted node: [B, G, ...]."""
    if self.is_chain:
      return array[:, :-1]
    if self.is_static:
      return array[:, np.array(self.parents, int)]
    return jax.vmap(lambda row, parents: row[parents])(array, self.parents)

  def path(self, last: Int[Array, "B"]) -> Int[Array, "B K"]:
    """Returns the nodes from the root to `last`; later entries are arbitrary."""
    if self.is_chain:
      return jnp.broadcast_to(jnp.arange(self.size + 1), (last.size, self.size + 1))
    nodes = self.size + 1
    sees = jnp.broadcast_to(self.sees, (last.size, nodes, nodes))
    depths = jnp.broadcast_to(self.depths, (last.size, nodes))
    levels = jnp.arange(self.depth + 1)
    is_seen = sees[jnp.arange(last.size), last][:, None]
    is_at_level = depths[:, None] == levels[:, None]
    return (is_seen & is_at_level).argmax(axis=-1)

  def depth_of(self, node: Int[Array, "B"]) -> Int[Array, "B"]:
    """Returns the distance from the root of one node per row."""
    depths = jnp.broadcast_to(self.depths, (node.size, self.size + 1))
    return jnp.take_along_axis(depths, node[:, None], axis=1)[:, 0]


def _flatten(tree):
  """Returns the arrays of a tree, and the static data; a static tree has no arrays."""
  return ((), tree.parents) if tree.is_static else ((tree.parents,), None)


def _unflatten(parents, arrays):
  """Rebuilds a tree without checks, as JAX may pass any objects for the arrays."""
  tree = object.__new__(Tree)
  object.__setattr__(tree, "parents", arrays[0] if arrays else parents)
  return tree


jax.tree_util.register_pytree_node(Tree, _flatten, _unflatten)


def _check_size(size: int) -> None:
  if size > _MOST_NODES:
    raise KnobError(
      "A draft may have at most {most} tokens, got {gamma} (in a tree, the tokens of "
      "every branch) = {size}. Lower {gamma} or {num_candidates}.",
      most=_MOST_NODES,
      size=size,
    )


def chain(size: int) -> Tree:
  """Returns a chain of `size` drafted tokens."""
  _check_size(size)
  return Tree(tuple(range(size)))


def delayed(stem: int, branches: int, length: int) -> Tree:
  """Returns a chain of `stem` tokens that then splits into branches.

  With a stem of 0 the branches are independent candidates. (Delayed tree expansion,
  arXiv 2602.16994.)

  Args:
    stem: the number of tokens before the split.
    branches: the number of branches.
    length: the number of tokens from the root to the end of each branch.
  """
  if not (
    is_whole(stem, 0) and is_whole(branches, 1) and is_whole(length, max(stem, 1))
  ):
    raise KnobError(
      "A tree needs {stem} of at least 0, {branches} of at least 1 and {gamma} of at "
      "least {stem} and 1, got {values[0]!r}, {values[1]!r} and {values[2]!r}.",
      values=(stem, branches, length),
    )
  _check_size(stem + branches * (length - stem))
  level = [stem] * branches
  parents = list(range(stem))
  for _ in range(length - stem):
    parents += level
    first = len(parents) - branches + 1
    level = list(range(first, first + branches))
  return Tree(tuple(parents))


@functools.cache
def _static_sees(parents):
  return _sees(np.array(parents, int))


def _sees(parents):
  """Computes `Tree.sees` with NumPy or JAX, as `parents` is."""
  xp = np if isinstance(parents, np.ndarray) else jnp
  size = parents.shape[-1] + 1
  root = xp.zeros((*parents.shape[:-1], 1), parents.dtype)
  parent = xp.concatenate([root, parents], axis=-1)
  sees = (parent[..., None] == xp.arange(size)) | xp.eye(size, dtype=bool)
  for _ in range(max(size - 1, 1).bit_length()):
    sees = (sees.astype(np.float32) @ sees.astype(np.float32)) > 0
  return sees
