"""What became of each place of an output: where in a sentence drafts failed.

Shapes: B rows, T output length.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any

import jax.numpy as jnp
from flax.linen.partitioning import with_sharding_constraint
from jaxtyping import Array, Int

from specdec_t5x.decoding.state import DecodeState, StepInfo
from specdec_t5x.decoding.step import Iteration

# A token that the target gave by itself (a bonus token, or nothing was drafted), a
# drafted one, and one in the place of a drafted one that was rejected.
OWN, ACCEPTED, RECOVERED = range(3)


@dataclasses.dataclass(frozen=True)
class KeepPlaces:
  """An observer (`decoding.generate`) that keeps whose token stands at each place.

  It is one of `OWN`, `ACCEPTED` and `RECOVERED`.
  """

  def check(self, target: Any, num_decodes: int = 1) -> None:
    """Raises a ValueError where there are several outputs an input."""
    if num_decodes != 1:
      raise ValueError(
        f"NUM_DECODES must be 1 with configs/runs/places.gin, got {num_decodes!r}: "
        "places are kept of one output an input."
      )

  def start(self, rows: int, max_length: int) -> Int[Array, "B T"]:
    """Returns what there is before the first iteration."""
    none = jnp.full((rows, max_length), OWN, jnp.int32)
    return with_sharding_constraint(none, ("batch", None))

  def observe(
    self, kept: Int[Array, "B T"], before: DecodeState, iteration: Iteration
  ) -> Int[Array, "B T"]:
    """Returns these with the places that a row gained."""
    return gained(kept, before.lengths - before.starts, iteration.info)

  def auxiliary(
    self, kept: Int[Array, "B T"], given: Mapping[str, Array]
  ) -> dict[str, Array]:
    """Returns what T5X's models add to their auxiliary values."""
    return {"places": kept}


def gained(
  kept: Int[Array, "B T"], first: Int[Array, "B"], info: StepInfo
) -> Int[Array, "B T"]:
  """Returns whose tokens rows have, of which those from `first` on are new."""
  column = lambda counts: counts[:, None]
  place = jnp.arange(kept.shape[1]) - column(first)
  is_drafted = (place >= 0) & (place < column(info.accepted))
  is_rejected = column(info.acceptance_positions > info.accepted)
  is_recovered = is_rejected & (place == column(info.accepted))
  kept = jnp.where(is_drafted, ACCEPTED, kept)
  return jnp.where(is_recovered, RECOVERED, kept)
