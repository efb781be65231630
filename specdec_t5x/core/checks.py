"""Whether a setting, or a result, is the number that it should be."""

import math
import numbers
from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
from jaxtyping import Array, Float


def is_whole(value: Any, least: int) -> bool:
  """Returns whether `value` is an integer of at least `least`; 5.0 is none.

  gin hands over any value.
  """
  is_integer = isinstance(value, numbers.Integral) and not isinstance(value, bool)
  return is_integer and value >= least


def is_finite(value: Any) -> bool:
  """Returns whether `value` is a finite number of at least 0."""
  is_real = isinstance(value, numbers.Real) and not isinstance(value, bool)
  return is_real and math.isfinite(value) and value >= 0


def is_probability(value: Any) -> bool:
  """Returns whether `value` is a number from 0 to 1."""
  return is_finite(value) and value <= 1


def check_uniforms(uniforms: Float[Array, "B C L"], decisions: int) -> None:
  """Raises a ValueError where there are not as many uniforms as decisions.

  An index beyond an array's end would be clamped, and a draw used twice.
  """
  if uniforms.ndim != 3 or uniforms.shape[1] != decisions:
    raise ValueError(
      f"Expected uniforms of {decisions} decisions, [B, {decisions}, L], got an array "
      f"of shape {uniforms.shape}. A drafter says how many it takes (`decisions`), and "
      "what wraps one hands on that number, too."
    )


def check_decoded(
  scores: Float[Array, "B *N"],
  acceptance_mass: Float[Array, "B"],
  name: Callable[[int], str],
) -> None:
  """Raises a ValueError where the logits behind a decode were not numbers.

  Args:
    scores: NaN where a law of the target's was.
    acceptance_mass: NaN where a law of the draft's was.
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
        f"{network}, in {rows.sum()} of {rows.size} examples. Decode in another dtype "
        "(float32), or train or copy the checkpoint again."
      )
