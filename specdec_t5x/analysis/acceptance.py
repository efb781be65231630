"""Estimates of alpha, the acceptance rate, from the counts of a run.

Drafted tokens of one example share the example's difficulty, so intervals treat the
example, not the token, as the unit. The estimate is alpha = sum_i a_i / sum_i n_i. The
variance of the ratio estimator is

  N / (N - 1) * sum_i (a_i - alpha n_i)^2 / (sum_i n_i)^2.

Source: Cochran, Sampling Techniques, 1977, section 6.3. The interval of a rate is
Wilson's, between 0 and 1, for the number of independent trials with the same variance.
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


def rate(
  numerator: Float[np.ndarray, "N"] | Int[np.ndarray, "N"],
  denominator: Float[np.ndarray, "N"] | Int[np.ndarray, "N"],
) -> Estimate:
  """Estimates an acceptance rate, a ratio between 0 and 1, over N examples.

  Args:
    numerator: accepted tokens, or the mass of acceptance, of each example.
    denominator: tested tokens of each example, at least the numerator.

  Returns:
    As `ratio`, with Wilson's interval, which lies between 0 and 1.
  """
  estimate = ratio(numerator, denominator)
  if estimate.low is None:
    return estimate
  value = min(max(estimate.value, 0.0), 1.0)  # A sum of masses has rounding errors.
  deviation = (estimate.high - estimate.low) / 2 / _Z95
  # A rate of 0 or 1 has no variance. Each example then counts as one trial.
  trials = float(np.size(numerator))
  if 0 < value < 1:
    if deviation == 0:
      return estimate
    trials = value * (1 - value) / deviation**2
  shrunk = 1 + _Z95**2 / trials
  center = (value + _Z95**2 / 2 / trials) / shrunk
  spread = value * (1 - value) / trials + (_Z95 / 2 / trials) ** 2
  margin = _Z95 * spread**0.5 / shrunk
  return Estimate(value, max(center - margin, 0.0), min(center + margin, 1.0))
