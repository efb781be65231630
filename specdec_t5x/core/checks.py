"""Whether a setting is the number that it should be; gin hands over any value."""

import math
import numbers
from typing import Any


def is_whole(value: Any, least: int) -> bool:
  """Returns whether `value` is an integer of at least `least`; 5.0 is none."""
  is_integer = isinstance(value, numbers.Integral) and not isinstance(value, bool)
  return is_integer and value >= least


def is_finite(value: Any) -> bool:
  """Returns whether `value` is a finite number of at least 0."""
  is_real = isinstance(value, numbers.Real) and not isinstance(value, bool)
  return is_real and math.isfinite(value) and value >= 0


def is_probability(value: Any) -> bool:
  """Returns whether `value` is a number from 0 to 1."""
  return is_finite(value) and value <= 1
