"""The speedup for a given acceptance rate, and estimates of the rate from counts.

p is the target's distribution, q the draft's. All functions accept numbers or arrays,
broadcast arrays, and compute in float64. They raise a ValueError if an argument is
outside its range. The forms in alpha assume that acceptances are independent and
equally likely. docs/math.md derives all forms.

Source: Leviathan, Kalman, Matias, "Fast Inference from Transformers via Speculative
Decoding", ICML 2023 (arXiv 2211.17192).

`ratio` and `rate` estimate alpha from the counts of a run. Drafted tokens of one
example share the example's difficulty, so intervals treat the example, not the token,
as the unit. The estimate is alpha = sum_i a_i / sum_i n_i. The variance of the ratio
estimator is

  N / (N - 1) * sum_i (a_i - alpha n_i)^2 / (sum_i n_i)^2.

Source: Cochran, Sampling Techniques, 1977, section 6.3. The interval of a rate is
Wilson's, between 0 and 1, for the number of independent trials with the same variance.
"""

import dataclasses

import numpy as np
from jaxtyping import Float, Int
from numpy.typing import ArrayLike

from specdec_t5x.core.knobs import is_whole

# A number, or an array of numbers.
Values = ArrayLike | float | int
# The result of a function: a number for numbers, an array for arrays.
Numbers = np.float64 | Float[np.ndarray, "..."]

# float32 probabilities of a large vocabulary sum to 1 well within this tolerance.
# Logits do not.
_SUM_TOLERANCE = 1e-3
# The two-sided 95% quantile of the normal distribution.
_Z95 = 1.959964


def expected_tokens(alpha: Values, gamma: Values) -> Numbers:
  """Returns the mean number of tokens per iteration.

  (1 - alpha^(gamma+1)) / (1 - alpha) = 1 + alpha + ... + alpha^gamma.
  (Section 3.1, equation 1.)

  Args:
    alpha: the chance that a drafted token is accepted, in [0, 1].
    gamma: drafted tokens per iteration, a whole number.

  Returns:
    Tokens per iteration, from 1 to gamma + 1.
  """
  alpha = _alpha(alpha)
  gamma = _gamma(gamma)
  # log and expm1 keep digits that the expression 1 - alpha^(gamma+1) loses near
  # alpha = 1. At alpha = 0, log returns -inf and expm1 then -1, which is the limit.
  with np.errstate(divide="ignore"):
    numerator = -np.expm1((gamma + 1) * np.log(alpha))
  certain = alpha == 1
  return np.where(certain, gamma + 1, numerator / np.where(certain, 1, 1 - alpha))[()]


def walltime_improvement(alpha: Values, gamma: Values, c: Values) -> Numbers:
  """Returns the speedup of a fixed gamma over plain decoding.

  (1 - alpha^(gamma+1)) / ((1 - alpha) (gamma c + 1)): tokens per iteration divided by
  the time of the iteration. Scoring gamma + 1 tokens is assumed to take as long as
  scoring one token. (Section 3.3, theorem 3.8.)

  Args:
    alpha: the chance that a drafted token is accepted, in [0, 1].
    gamma: drafted tokens per iteration, a whole number.
    c: draft step time / target step time, at least 0.

  Returns:
    Time of plain decoding / time with speculation; below 1 is a loss.
  """
  gamma = _gamma(gamma)
  c = _cost("c", c, "step time")
  return expected_tokens(alpha, gamma) / (gamma * c + 1)


def operations_factor(alpha: Values, gamma: Values, c_hat: Values) -> Numbers:
  """Returns the ratio of arithmetic operations per token to plain decoding.

  (1 - alpha) (gamma c_hat + gamma + 1) / (1 - alpha^(gamma+1)).
  (Section 3.4, theorem 3.11.)

  Args:
    alpha: the chance that a drafted token is accepted, in [0, 1].
    gamma: drafted tokens per iteration, a whole number.
    c_hat: operations per token of the draft / of the target, at least 0.

  Returns:
    Operations per token with speculation / without.
  """
  gamma = _gamma(gamma)
  c_hat = _cost("c_hat", c_hat, "operations per token")
  return (gamma * c_hat + gamma + 1) / expected_tokens(alpha, gamma)


def optimal_gamma(
  alpha: Values, c: Values, *, max_gamma: int = 64
) -> Int[np.ndarray, "..."] | np.int64:
  """Returns the gamma of the largest walltime improvement; 0 without an improvement.

  Speculation is faster if and only if alpha > c. The improvement is then at least
  (1 + alpha) / (1 + c), the factor of gamma = 1. (Section 3.3, corollary 3.9; section
  3.5.)

  Args:
    alpha: the chance that a drafted token is accepted, in [0, 1].
    c: draft step time / target step time, at least 0.
    max_gamma: the largest gamma to try, at least 1. If the result is `max_gamma`, a
      larger gamma may be better (always with alpha = 1 > c, or with c = 0 < alpha).

  Returns:
    Drafted tokens per iteration; any of the best gammas in a tie.
  """
  alpha = _alpha(alpha)
  c = _cost("c", c, "step time")
  if not is_whole(max_gamma, 1):
    raise ValueError(f"max_gamma must be a whole number from 1 on, got {max_gamma}.")
  gammas = np.arange(1, max_gamma + 1)
  factors = walltime_improvement(alpha[..., None], gammas, c[..., None])
  # The corollary decides, not a comparison of the factor with 1: at alpha = c the
  # factor of gamma = 1 is 1 only up to rounding.
  return np.where(alpha > c, gammas[np.argmax(factors, axis=-1)], 0)[()]


def lenient_acceptance(p: Values, q: Values, lenience: Values = 1) -> Numbers:
  """Returns sum_x min(p(x) / l, q(x)), the chance that a draft from q is accepted.

  At l = 1 the chance is beta of section 3.2, theorem 3.5. alpha is the mean of beta
  over prefixes (corollary 3.6). The formula is for sampling. Greedy decoding has a
  different lenient test. (Appendix A.5.)

  Args:
    p: probabilities of the target, [..., V].
    q: probabilities of the draft, [..., V].
    lenience: l, above 0 and at most 1; broadcast against the batch. 1 is exact.

  Returns:
    A probability for each pair of distributions, [...].
  """
  p, q = _distributions(p, q)
  fix = "1 is exact; smaller values accept more."
  lenience = _array(
    "lenience", lenience, lambda x: (x > 0) & (x <= 1), "above 0 and at most 1", fix
  )
  return np.minimum(p / lenience[..., None], q).sum(axis=-1)


@dataclasses.dataclass(frozen=True)
class Estimate:
  """A ratio and the 95% interval; None for numbers that the data do not determine."""

  value: float | None
  low: float | None
  high: float | None


def ratio(numerator: ArrayLike, denominator: ArrayLike) -> Estimate:
  """Estimates sum(numerator) / sum(denominator) over N examples.

  Args:
    numerator: numerator of each example, [N].
    denominator: denominator of each example, at least 0, [N].

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


def rate(numerator: ArrayLike, denominator: ArrayLike) -> Estimate:
  """Estimates an acceptance rate, a ratio between 0 and 1, over N examples.

  Args:
    numerator: accepted tokens, or the mass of acceptance, of each example, [N].
    denominator: tested tokens of each example, at least the numerator, [N].

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


def _array(name, value, accepts, expected, fix):
  """Returns a value as an array, or raises an error with the first invalid element."""
  value = np.asarray(value, np.float64)
  valid = accepts(value)
  if not np.all(valid):
    raise ValueError(f"{name} must be {expected}, got {value[~valid].flat[0]}. {fix}")
  return value


def _alpha(value):
  fix = "alpha is a fraction (accepted / tried drafted tokens), not a percentage."
  return _array("alpha", value, lambda x: (x >= 0) & (x <= 1), "between 0 and 1", fix)


def _gamma(value):
  def accepts(x):
    return np.isfinite(x) & (x >= 0) & (x == np.floor(x))

  fix = "gamma counts drafted tokens; 0 means no speculation."
  return _array("gamma", value, accepts, "a whole number of at least 0", fix)


def _cost(name, value, unit):
  fix = f"The ratio is the draft's {unit} / the target's {unit}; 0 means a free draft."
  expected = "a finite number of at least 0"
  return _array(name, value, lambda x: np.isfinite(x) & (x >= 0), expected, fix)


def _distributions(p, q):
  p, q = np.asarray(p, np.float64), np.asarray(q, np.float64)
  if not p.ndim or not q.ndim or p.shape[-1] != q.shape[-1]:
    raise ValueError(
      "p and q must be distributions over one vocabulary along the last axis, got "
      f"shapes {p.shape} and {q.shape}. Give p and q over the target's vocabulary."
    )
  fix = "Pass probabilities: softmax the logits, or divide counts by their sum."
  for name, distribution in (("p", p), ("q", q)):
    _array(name, distribution, lambda x: x >= 0, "probabilities of at least 0", fix)
    name = f"{name}'s sum over the last axis"
    total = distribution.sum(axis=-1)
    _array(name, total, lambda x: np.abs(x - 1) <= _SUM_TOLERANCE, "1", fix)
  return p, q
