"""Token trees: the shape of a draft, and who sees whom in it.

Node 0 is the root, the last known token. The drafted nodes 1 .. G come level by level,
siblings side by side, children of earlier nodes first: their parents never fall.

Shapes: B rows, G drafted nodes, N = G + 1 nodes, D the depth of the deepest, K = D + 1.
"""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Int

from specdec_t5x.core.checks import is_whole

# The table of which node sees which has the square of a draft's size.
_MOST_NODES = 4096


@dataclasses.dataclass(frozen=True)
class Tree:
  """The parents of G drafted nodes: a tuple, or an array with a tree for each row.

  >>> Tree((0, 0, 1)).depths.tolist()  # Two children of the root, one of the first.
  [0, 1, 1, 2]

  Attributes:
    parents: of nodes 1 .. G, each a node before it, never falling.
  """

  parents: tuple[int, ...] | Int[Array, "B G"]

  def __post_init__(self):
    if not isinstance(self.parents, tuple):
      return
    _check_size(len(self.parents))
    known = (0, *self.parents)
    if not all(
      is_whole(parent, before) and parent < node
      for node, (before, parent) in enumerate(zip(known, self.parents, strict=False), 1)
    ):
      raise ValueError(
        "A tree's parents must be nodes that come earlier (0 is the root), in an order "
        f"that never falls, got {self.parents}. A chain of three is (0, 1, 2)."
      )

  @property
  def is_static(self) -> bool:
    """Whether the tree is known when programs are compiled."""
    return isinstance(self.parents, tuple)

  @property
  def is_chain(self) -> bool:
    """Whether each node is the only child of the one before."""
    return self.is_static and self.parents == tuple(range(self.size))

  @property
  def size(self) -> int:
    """G, the number of drafted nodes."""
    return len(self.parents) if self.is_static else self.parents.shape[1]

  @property
  def depth(self) -> int:
    """D, or as much as it may be: what is known when programs are compiled."""
    return int(self.depths.max()) if self.is_static else self.size

  @property
  def sees(self) -> Bool[Array | np.ndarray, "*B N N"]:
    """Which nodes each one sees: its ancestors and itself."""
    return _static_sees(self.parents) if self.is_static else _sees(self.parents)

  @property
  def depths(self) -> Int[Array | np.ndarray, "*B N"]:
    """How far each node is from the root."""
    return self.sees.sum(axis=-1) - 1

  def of_parents(self, array: Array) -> Array:
    """Returns what [B, N, ...] holds at each drafted node's parent, [B, G, ...]."""
    if self.is_chain:
      return array[:, :-1]
    if self.is_static:
      return array[:, np.array(self.parents, int)]
    return jax.vmap(lambda row, parents: row[parents])(array, self.parents)

  def path(self, last: Int[Array, "B"]) -> Int[Array, "B K"]:
    """Returns the nodes from the root to `last`; beyond it any nodes."""
    rows = jnp.arange(last.size)
    if self.is_chain:
      return jnp.broadcast_to(jnp.arange(self.size + 1), (last.size, self.size + 1))
    sees, depths = (
      jnp.broadcast_to(x, (last.size, *x.shape[-ndim:]))
      for x, ndim in ((self.sees, 2), (self.depths, 1))
    )
    levels = jnp.arange(self.depth + 1)
    is_at = sees[rows, last][:, None] & (depths[:, None] == levels[:, None])
    return is_at.argmax(axis=-1)

  def depth_of(self, node: Int[Array, "B"]) -> Int[Array, "B"]:
    """Returns how far a node of each row is from the root."""
    depths = jnp.broadcast_to(self.depths, (node.size, self.size + 1))
    return jnp.take_along_axis(depths, node[:, None], axis=1)[:, 0]


def _flatten(tree):
  """Returns the arrays, none in a tree that is the same for all rows."""
  return ((), tree.parents) if tree.is_static else ((tree.parents,), None)


def _unflatten(parents, arrays):
  """Returns the tree again; JAX may stand anything in for the arrays."""
  tree = object.__new__(Tree)
  object.__setattr__(tree, "parents", arrays[0] if arrays else parents)
  return tree


jax.tree_util.register_pytree_node(Tree, _flatten, _unflatten)


def _check_size(size: int) -> None:
  if size > _MOST_NODES:
    raise ValueError(
      f"A draft may have at most {_MOST_NODES} tokens, got GAMMA (of a tree, all "
      f"tokens of its branches) = {size}. Lower GAMMA or NUM_CANDIDATES."
    )


def chain(size: int) -> Tree:
  """Returns the tree of one draft of `size` tokens."""
  _check_size(size)
  return Tree(tuple(range(size)))


def delayed(stem: int, branches: int, length: int) -> Tree:
  """Returns a chain of `stem` tokens that then parts into branches.

  With a stem of 0 these are independent candidates. (Delayed tree expansion, arXiv
  2602.16994.)

  Args:
    stem: tokens before the parting.
    branches: how many there are.
    length: tokens from the root to each branch's end.
  """
  if not (
    is_whole(stem, 0) and is_whole(branches, 1) and is_whole(length, max(stem, 1))
  ):
    raise ValueError(
      "A tree needs STEM of at least 0, BRANCHES of at least 1 and GAMMA of at least "
      f"STEM and 1, got {stem!r}, {branches!r} and {length!r}."
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
  """Returns `Tree.sees`, of NumPy's arrays or JAX's alike."""
  xp = np if isinstance(parents, np.ndarray) else jnp
  size = parents.shape[-1] + 1
  root = xp.zeros((*parents.shape[:-1], 1), parents.dtype)
  parent = xp.concatenate([root, parents], axis=-1)
  sees = (parent[..., None] == xp.arange(size)) | xp.eye(size, dtype=bool)
  for _ in range(max(size - 1, 1).bit_length()):
    sees = (sees.astype(np.float32) @ sees.astype(np.float32)) > 0
  return sees
