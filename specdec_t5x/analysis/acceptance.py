"""Estimates of alpha, the acceptance rate, from the counts of a run.

Drafted tokens of one example share the example's difficulty, so intervals treat the
example, not the token, as the unit. The estimate is alpha = sum_i a_i / sum_i n_i. The
variance of the ratio estimator is

  N / (N - 1) * sum_i (a_i - alpha n_i)^2 / (sum_i n_i)^2.

Source: Cochran, Sampling Techniques, 1977, section 6.3.
"""

import dataclasses

import numpy as np
from jaxtyping import Float, Int

# The two-sided 95% quantile of the normal distribution.
_Z95 = 1.959964


@dataclasses.dataclass(frozen=True)
class Estimate:
  """A ratio and the 95% interval; None for numbers that the data do not determine."""

  value: float | None
  low: float | None
  high: float | None


def ratio(
  numerator: Float[np.ndarray, "N"] | Int[np.ndarray, "N"],
  denominator: Float[np.ndarray, "N"] | Int[np.ndarray, "N"],
) -> Estimate:
  """Estimates sum(numerator) / sum(denominator) over N examples.

  Args:
    numerator: numerator of each example.
    denominator: denominator of each example, at least 0.

  Returns:
    The ratio (None if all denominators are 0) and the interval (None for fewer than two
    examples).
  """
  numerator = np.asarray(numerator, np.float64)
  denominator = np.asarray(denominator, np.float64)
  total = denominator.sum()
  if total == 0:
    return Estimate(None, None, None)
  value = numerator.sum() / total
  count = numerator.size
  if count < 2:
    return Estimate(float(value), None, None)
  squares = np.square(numerator - value * denominator).sum()
  margin = _Z95 * np.sqrt(count / (count - 1) * squares) / total
  return Estimate(float(value), float(value - margin), float(value + margin))
