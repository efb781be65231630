"""Records the origin of each output token, which shows the places of rejections.

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

# The origins of a token. OWN: the target's token after a fully accepted or an empty
# draft. ACCEPTED: a drafted token. RECOVERED: the replacement of a rejected token.
OWN, ACCEPTED, RECOVERED = range(3)


@dataclasses.dataclass(frozen=True)
class KeepPlaces:
  """An observer (`decoding.generate`) that keeps the origin of each output token.

  An origin is `OWN`, `ACCEPTED` or `RECOVERED`.
  """

  def check(self, target: Any, num_decodes: int = 1) -> None:
    """Raises a ValueError if an input has several outputs."""
    if num_decodes != 1:
      raise ValueError(
        f"NUM_DECODES must be 1 with configs/runs/places.gin, got {num_decodes!r}: "
        "places are kept for one output per input. Set NUM_DECODES=1."
      )

  def start(self, rows: int, max_length: int) -> Int[Array, "B T"]:
    """Returns `OWN` for all places, as before the first iteration."""
    places = jnp.full((rows, max_length), OWN, jnp.int32)
    return with_sharding_constraint(places, ("batch", None))

  def observe(
    self, kept: Int[Array, "B T"], before: DecodeState, iteration: Iteration
  ) -> Int[Array, "B T"]:
    """Returns the kept origins with the origins of the rows' new tokens."""
    return gained(kept, before.lengths - before.starts, iteration.info)

  def auxiliary(
    self, kept: Int[Array, "B T"], given: Mapping[str, Array]
  ) -> dict[str, Array]:
    """Returns the entries for the auxiliary values of T5X's models."""
    return {"places": kept}


def gained(
  kept: Int[Array, "B T"], first: Int[Array, "B"], info: StepInfo
) -> Int[Array, "B T"]:
  """Returns the origins after an iteration; `first` is each row's first new place."""
  accepted = info.accepted[:, None]
  place = jnp.arange(kept.shape[1]) - first[:, None]
  is_drafted = (place >= 0) & (place < accepted)
  is_rejected = (info.acceptance_positions > info.accepted)[:, None]
  is_recovered = is_rejected & (place == accepted)
  kept = jnp.where(is_drafted, ACCEPTED, kept)
  return jnp.where(is_recovered, RECOVERED, kept)
