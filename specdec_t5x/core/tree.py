"""Token trees: the shape of a draft, and the attention between nodes.

Node 0 is the root, the last known token. The drafted nodes 1 .. G come level by level,
children of earlier nodes first, so parents never decrease.

Shapes: B rows, G drafted nodes, N = G + 1 nodes, D the depth of the deepest, K = D + 1.
"""

import dataclasses
import functools
from types import ModuleType

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Int

from specdec_t5x.core.knobs import KnobError, is_whole

# The size of `Tree.sees` is quadratic in the number of nodes.
_MOST_NODES = 4096


@jax.tree_util.register_static
@dataclasses.dataclass(frozen=True)
class Tree:
  """The parents of G drafted nodes.

  >>> Tree((0, 0, 1)).depths.tolist()  # Two children of the root, one of the first.
  [0, 1, 1, 2]

  Attributes:
    parents: the parents of nodes 1 .. G, earlier nodes in non-decreasing order.
  """

  parents: tuple[int, ...]

  def __post_init__(self):
    check_size(len(self.parents))
    before = (0, *self.parents)
    if not isinstance(self.parents, tuple) or not all(
      is_whole(parent, before[i]) and parent <= i
      for i, parent in enumerate(self.parents)
    ):
      raise ValueError(
        "A tree's parents must be earlier nodes (0 is the root) in ascending order, "
        f"got {self.parents}. A chain of three is (0, 1, 2)."
      )

  @property
  def is_chain(self) -> bool:
    """Whether each node is the only child of the node before."""
    return self.parents == tuple(range(self.size))

  @property
  def size(self) -> int:
    """G, the number of drafted nodes."""
    return len(self.parents)

  @property
  def depth(self) -> int:
    """D, the largest distance from the root."""
    return int(self.depths.max())

  @property
  def sees(self) -> Bool[Array | np.ndarray, "*B N N"]:
    """The nodes that each node sees: the node and all ancestors."""
    return _sees(self.parents)

  @property
  def depths(self) -> Int[Array | np.ndarray, "*B N"]:
    """The distance of each node from the root."""
    return self.sees.sum(axis=-1) - 1

  def of_parents(self, array: Array) -> Array:
    """Gathers [B, N, ...] at the parent of each drafted node: [B, G, ...]."""
    return array[:, :-1] if self.is_chain else array[:, np.array(self.parents, int)]

  def path(self, last: Int[Array, "B"]) -> Int[Array, "B K"]:
    """Returns the nodes from the root to `last`; later entries are arbitrary."""
    if self.is_chain:
      return jnp.broadcast_to(jnp.arange(self.size + 1), (last.size, self.size + 1))
    nodes = self.size + 1
    sees = jnp.broadcast_to(self.sees, (last.size, nodes, nodes))
    depths = jnp.broadcast_to(self.depths, (last.size, nodes))
    is_seen = sees[jnp.arange(last.size), last][:, None]
    is_at_level = depths[:, None] == jnp.arange(self.depth + 1)[:, None]
    return (is_seen & is_at_level).argmax(axis=-1)

  def depth_of(self, node: Int[Array, "B"]) -> Int[Array, "B"]:
    """Returns the distance from the root of one node per row."""
    depths = jnp.broadcast_to(self.depths, (node.size, self.size + 1))
    return jnp.take_along_axis(depths, node[:, None], axis=1)[:, 0]


def check_size(size: int) -> None:
  """Raises a ValueError if a tree of `size` nodes is too large."""
  if size > _MOST_NODES:
    raise KnobError(
      "A draft may have at most {most} tokens, got {gamma} (in a tree, the tokens of "
      "every branch) = {size}. Lower {gamma} or {num_candidates}.",
      most=_MOST_NODES,
      size=size,
    )


def chain(size: int) -> Tree:
  """Returns a chain of `size` drafted tokens."""
  check_size(size)
  return Tree(tuple(range(size)))


@functools.cache
def _sees(parents):
  return ancestors(np.array(parents, int), np)


def ancestors(
  parents: Int[Array | np.ndarray, "*B G"], xp: ModuleType
) -> Bool[Array | np.ndarray, "*B N N"]:
  """Computes `Tree.sees` with NumPy or JAX (`xp`)."""
  size = parents.shape[-1] + 1
  root = xp.zeros((*parents.shape[:-1], 1), parents.dtype)
  parent = xp.concatenate([root, parents], axis=-1)
  sees = (parent[..., None] == xp.arange(size)) | xp.eye(size, dtype=bool)
  for _ in range(max(size - 1, 1).bit_length()):
    sees = (sees.astype(np.float32) @ sees.astype(np.float32)) > 0
  return sees
