"""Detects NaNs in a decode."""

from collections.abc import Callable

import numpy as np
from jaxtyping import Array, Float


def check_decoded(
  scores: Float[Array | np.ndarray, "B *N"],
  acceptance_mass: Float[Array | np.ndarray, "B"],
  name: Callable[[int], str],
) -> None:
  """Raises a ValueError if the logits of a decode were NaN.

  Args:
    scores: NaN in rows with a NaN in the target's distributions.
    acceptance_mass: NaN in rows with a NaN in the draft's distributions.
    name: function that returns the name of a row's example.
  """
  # With NumPy, because JAX would compile each operation for each number of rows.
  lost = {
    "target": np.isnan(scores).reshape(len(scores), -1).any(axis=1),
    "draft": np.isnan(acceptance_mass),
  }
  for network, rows in lost.items():
    if rows.any():
      raise ValueError(
        f"{name(int(rows.argmax()))}: expected numbers for logits, got NaN from the "
        f"{network}, in {rows.sum()} of {rows.size} examples. Decode in float32, or "
        "train or copy the checkpoint again."
      )
