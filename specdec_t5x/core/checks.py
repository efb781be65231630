"""Checks of numeric settings."""

import math
import numbers
from typing import Any

from jaxtyping import Array, Float


def is_whole(value: Any, least: int) -> bool:
  """Returns whether `value` is an integer of at least `least`; 5.0 is not an integer.

  `value` may have any type, since gin passes any value.
  """
  is_integer = isinstance(value, numbers.Integral) and not isinstance(value, bool)
  return is_integer and bool(value >= least)


def is_finite(value: Any) -> bool:
  """Returns whether `value` is a finite number of at least 0."""
  is_real = isinstance(value, numbers.Real) and not isinstance(value, bool)
  return is_real and math.isfinite(value) and bool(value >= 0)


def is_probability(value: Any) -> bool:
  """Returns whether `value` is a number from 0 to 1."""
  return is_finite(value) and bool(value <= 1)


def check_uniforms(uniforms: Float[Array, "B C L"], decisions: int) -> None:
  """Raises a ValueError if the number of uniforms differs from that of decisions.

  JAX clamps an index beyond an array's end, so a draw would be used twice.
  """
  if uniforms.ndim != 3 or uniforms.shape[1] != decisions:
    raise ValueError(
      f"Expected uniforms of {decisions} decisions, [B, {decisions}, L], got an array "
      f"of shape {uniforms.shape}. A drafter sets the number of decisions "
      "(`decisions`), and a wrapper must forward `decisions`."
    )
