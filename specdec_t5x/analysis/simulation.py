"""Tokens per iteration of rules that have no closed form, by simulation.

The laws are given position by position and do not depend on the tokens before; for
token verification the mean is then 1 + beta_1 + beta_1 beta_2 + ..., exactly
(`token_tokens`). The others are averages over drawn drafts, with their standard error.
Nothing here shares code with `core`: NumPy alone, many drafts at once.

Shapes: G drafted tokens, V vocabulary, N samples, C candidates.
"""

import dataclasses

import numpy as np
from jaxtyping import Float
from numpy.typing import ArrayLike

from specdec_t5x.analysis.theory import acceptance

_BISECTIONS = 60


@dataclasses.dataclass(frozen=True)
class Simulated:
  """A mean over independent samples, with its standard error."""

  mean: float
  standard_error: float


def token_tokens(p: ArrayLike, q: ArrayLike) -> float:
  """Returns the mean tokens per iteration of token verification, exactly.

  (Leviathan et al., section 3.1, without the assumption that all beta are equal.)

  Args:
    p: the target's law at each drafted position, [G, V].
    q: the draft's, [G, V].

  Raises:
    ValueError: where they are not laws at the same positions.
  """
  p, q = _positions(p, q)
  return float(1 + np.cumprod(acceptance(p, q)).sum())


def block_tokens(
  p: ArrayLike, q: ArrayLike, samples: int, rng: np.random.Generator
) -> Simulated:
  """Simulates the mean tokens per iteration of block verification.

  Drafts are drawn; the tests of a draft's prefixes are averaged over exactly.
  (Sun et al., arXiv 2403.10444, algorithm 2.)

  Args:
    p: the target's law at each drafted position, [G, V].
    q: the draft's, [G, V].
    samples: drafts, at least 2.
    rng: draws them.

  Raises:
    ValueError: where p and q are not laws at the same positions, or `samples` < 2.
  """
  p, q = _positions(p, q)
  _check_samples(samples)
  gamma = len(p)
  weight, fails = np.ones(samples), []
  for i in range(gamma):
    x = _draw(q[i], samples, rng)
    weight = np.minimum(1.0, weight * p[i, x] / q[i, x])
    if i + 1 == gamma:
      passes = weight
    else:
      mass = np.maximum(weight[:, None] * p[i + 1] - q[i + 1], 0.0).sum(axis=1)
      lost = mass + 1 - weight
      # Nothing is lost from here on: a longer prefix is bound to pass (docs/math.md).
      passes = np.where(lost > 0, mass / np.where(lost > 0, lost, 1.0), 1.0)
    fails.append(1.0 - passes)
  # At least i tokens are accepted unless the tests i, i + 1, ... all fail.
  none_from = np.cumprod(fails[::-1], axis=0)[::-1]
  return _mean(1 + (1 - none_from).sum(axis=0))


def kseq_tokens(
  p: ArrayLike,
  q: ArrayLike,
  num_candidates: int,
  samples: int,
  rng: np.random.Generator,
) -> Simulated:
  """Simulates the mean tokens per iteration of k-SEQ with several drafts.

  (Sun et al., arXiv 2310.15141, algorithm 2; there p is the draft.)

  Args:
    p: the target's law at each drafted position, [G, V].
    q: the draft's, [G, V].
    num_candidates: C, drafts an iteration, at least 1.
    samples: iterations, at least 2.
    rng: draws drafts and tests.

  Raises:
    ValueError: where p and q are not laws at the same positions, `samples` < 2 or
      `num_candidates` < 1.
  """
  p, q = _positions(p, q)
  _check_samples(samples)
  if num_candidates < 1 or num_candidates != int(num_candidates):
    raise ValueError(
      f"num_candidates must be a whole number of at least 1, got {num_candidates}."
    )
  running = np.ones((samples, num_candidates), bool)
  going, accepted = np.ones(samples, bool), np.zeros(samples)
  rows = np.arange(samples)
  for target, draft in zip(p, q, strict=True):
    x = _draw(draft, (samples, num_candidates), rng)
    # rho by how many drafts are still in the running; none has a test to pass.
    rho = np.array([1.0] + [least_rho(target, draft, k + 1) for k in range(x.shape[1])])
    chance = target[x] / (rho[running.sum(axis=1)][:, None] * draft[x])
    passes = running & (rng.random(x.shape) < chance)
    going &= passes.any(axis=1)
    accepted += going
    running &= (x == x[rows, passes.argmax(axis=1)][:, None]) & going[:, None]
  return _mean(1 + accepted)


def hierarchy_tokens(
  p: ArrayLike,
  q: ArrayLike,
  lower: ArrayLike,
  gamma: int,
  samples: int,
  rng: np.random.Generator,
  flush: bool = False,
) -> tuple[Simulated, Simulated]:
  """Simulates an iteration of a two-level hierarchy with windows of G tokens.

  Which of a window's tokens were drafted below and which corrected matters for whether
  the target accepts them, and is drawn here; a closed form that takes the levels for
  independent leaves it out. (Globerson et al., arXiv 2510.19705.)

  Args:
    p: the target's law at each place of the window, [G, V].
    q: the middle network's, [G, V].
    lower: the lowest draft's, [G, V].
    gamma: tokens of a lower draft, at least 1.
    samples: windows, at least 2.
    rng: draws them.
    flush: whether a window ends with the first corrected token.

  Returns:
    Tokens a call of the target, and calls of the middle network for it.

  Raises:
    ValueError: where the laws are not of the same places, or a number is too small.
  """
  p, q = _positions(p, q)
  q, lower = _positions(q, lower)
  _check_samples(samples)
  left, tokens = np.zeros(samples, int), np.ones(samples)
  starts, open_, stands = (np.ones(samples, bool) for _ in range(3))
  calls = np.zeros(samples)
  for i, (target, middle, law) in enumerate(zip(p, q, lower, strict=True)):
    calls += starts & open_
    left = np.where(starts, min(gamma, len(p) - i - 1), left)
    x = _draw(law, samples, rng)
    drafted = left > 0
    passes = drafted & (rng.random(samples) < middle[x] / law[x])
    excess = np.maximum(middle - law, 0.0)
    spare = excess if excess.sum() > 0 else middle
    x = np.where(passes, x, _draw(spare, samples, rng))
    x = np.where(drafted, x, _draw(middle, samples, rng))
    stands &= open_ & (rng.random(samples) < target[x] / middle[x])
    tokens += stands
    starts, left = ~passes, left - 1
    if flush:
      open_ = open_ & (passes | ~drafted)
  return _mean(tokens), _mean(calls)


def least_rho(
  p: Float[np.ndarray, "V"], q: Float[np.ndarray, "V"], count: int
) -> float:
  """Returns the least rho in [1, count] with 1 - (1 - beta)^count <= rho beta.

  beta = sum_x min(q, p / rho). (Sun et al., arXiv 2310.15141, section 4.)
  """
  low, high = 1.0, float(count)
  for _ in range(_BISECTIONS):
    rho = (low + high) / 2
    beta = np.minimum(q, p / rho).sum()
    if 1 - (1 - beta) ** count <= rho * beta:
      high = rho
    else:
      low = rho
  return high


def _draw(law, shape, rng):
  return rng.choice(law.size, size=shape, p=law / law.sum())


def _mean(values):
  error = values.std(ddof=1) / np.sqrt(values.size)
  return Simulated(float(values.mean()), float(error))


def _positions(p, q):
  p, q = np.asarray(p, np.float64), np.asarray(q, np.float64)
  if p.ndim != 2 or p.shape != q.shape or not len(p):
    raise ValueError(
      "p and q must be laws at each of the same drafted positions, [G, V] with G of at "
      f"least 1, got shapes {p.shape} and {q.shape}."
    )
  acceptance(p, q)  # Refuses what is no law.
  return p, q


def _check_samples(samples):
  if samples < 2 or samples != int(samples):
    raise ValueError(
      f"samples must be a whole number of at least 2, got {samples}: a standard error "
      "needs two."
    )
