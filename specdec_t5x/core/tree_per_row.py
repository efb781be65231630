"""Trees that differ between rows, chosen while decoding.

Shapes: B rows, G drafted nodes, N = G + 1 nodes.
"""

import dataclasses

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Int

from specdec_t5x.core.tree import Tree, ancestors


@dataclasses.dataclass(frozen=True)
class TreePerRow(Tree):
  """A tree of G drafted nodes for each row.

  Attributes:
    parents: the parents of each row's nodes, as in `Tree`; not checked.
  """

  parents: Int[Array, "B G"]

  def __post_init__(self):
    pass

  @property
  def is_chain(self) -> bool:
    """False: no tree is known when programs are compiled."""
    return False

  @property
  def size(self) -> int:
    """G, the number of drafted nodes."""
    return self.parents.shape[1]

  @property
  def depth(self) -> int:
    """The largest possible depth."""
    return self.size

  @property
  def sees(self) -> Bool[Array, "B N N"]:
    """The nodes that each node sees: the node and all ancestors."""
    return ancestors(self.parents, jnp)

  def of_parents(self, array: Array) -> Array:
    """Gathers [B, N, ...] at the parent of each drafted node: [B, G, ...]."""
    return jax.vmap(lambda row, parents: row[parents])(array, self.parents)


def _unflatten(_, arrays):
  """Rebuilds a tree without type checks: JAX may pass any objects for the arrays."""
  tree = object.__new__(TreePerRow)
  object.__setattr__(tree, "parents", *arrays)
  return tree


jax.tree_util.register_pytree_node(
  TreePerRow, lambda tree: ((tree.parents,), None), _unflatten
)
