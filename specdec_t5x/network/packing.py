"""Rows' blocks of several lengths, packed: no token is computed that does not count.

What a network does with a token alone (products, norms, the head) it does with packed
tokens; attention, which is a small part, is between the tokens of whole blocks. Packed
or not, a token's numbers are the same bit for bit where those of few rows are
(`products`).

Shapes: B rows, N tokens of a block, P packed tokens.
"""

import flax.struct
import jax.numpy as jnp
from jaxtyping import Array, Int, Shaped


@flax.struct.dataclass
class Packing:
  """Which tokens of a block are computed: of each row its first ones.

  Attributes:
    rows: of each packed token; beyond the last one the last row.
    offsets: of each in its row.
    places: where each token of the block is packed; beyond those that are, its row's
      last one, so that what is garbage is at least of the row itself.
  """

  rows: Int[Array, "P"]
  offsets: Int[Array, "P"]
  places: Int[Array, "B N"]

  @classmethod
  def of(cls, counts: Int[Array, "B"], width: int, size: int) -> "Packing":
    """Returns how the first `counts` of `size` tokens a row are packed.

    Args:
      counts: at least 1 each.
      width: P, at least the sum of all.
      size: N.
    """
    ends = jnp.cumsum(counts)
    starts, at = ends - counts, jnp.arange(width)
    rows = jnp.minimum((ends <= at[:, None]).sum(axis=1), counts.size - 1)
    offsets = jnp.minimum(at - starts[rows], counts[rows] - 1)
    within = jnp.minimum(jnp.arange(size), counts[:, None] - 1)
    return cls(rows, offsets, starts[:, None] + within)


def pack(
  packing: Packing | None, x: Shaped[Array, "B N *rest"]
) -> Shaped[Array, "*tokens"]:
  """Returns the tokens that are computed [P, ..]; without a packing x itself."""
  return x if packing is None else x[packing.rows, packing.offsets]


def unpack(
  packing: Packing | None, x: Shaped[Array, "*tokens"]
) -> Shaped[Array, "B N *rest"]:
  """Returns them in their block [B, N, ..]; without a packing x itself."""
  return x if packing is None else x[packing.places]
