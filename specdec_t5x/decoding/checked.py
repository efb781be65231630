"""Whether a decode was one of numbers."""

from collections.abc import Callable

import jax.numpy as jnp
from jaxtyping import Array, Float


def check_decoded(
  scores: Float[Array, "B *N"],
  acceptance_mass: Float[Array, "B"],
  name: Callable[[int], str],
) -> None:
  """Raises a ValueError where the logits behind a decode were not numbers.

  Args:
    scores: NaN where a distribution of the target's was.
    acceptance_mass: NaN where a distribution of the draft's was.
    name: of the example in a row.
  """
  lost = {
    "target": jnp.isnan(scores).reshape(len(scores), -1).any(axis=1),
    "draft": jnp.isnan(acceptance_mass),
  }
  for network, rows in lost.items():
    if rows.any():
      raise ValueError(
        f"{name(int(rows.argmax()))}: expected numbers for logits, got NaN from the "
        f"{network}, in {rows.sum()} of {rows.size} examples. Decode in float32, or "
        "train or copy the checkpoint again."
      )
