"""A NumPy simulation of a two-level hierarchy: the oracle of `lab.hierarchy.planner`.

Shapes: G tokens of a window, V vocabulary.
"""

import numpy as np


def hierarchy_tokens(p, q, lower, gamma, samples, rng, flush=False):
  """Simulates windows of a two-level hierarchy with lower drafts of gamma tokens.

  p, q and `lower` are the distributions of the target, the middle network and the
  lowest draft [G, V]. With `flush` a window ends with the first corrected token. The
  chance that the target accepts a token depends on the token's origin, drafted below or
  corrected. The simulation draws the origin; a closed form with independent levels
  ignores the dependence. (Globerson et al., arXiv 2510.19705.)

  Returns:
    (mean, standard error) of the tokens per call of the target, and of the middle
    network's calls per call of the target.
  """
  left = np.zeros(samples, int)
  tokens = np.ones(samples)
  starts, open_, stands = (np.ones(samples, bool) for _ in range(3))
  calls = np.zeros(samples)
  for i, (target, middle, distribution) in enumerate(zip(p, q, lower, strict=True)):
    calls += starts & open_
    left = np.where(starts, min(gamma, len(p) - i - 1), left)
    x = _draw(distribution, samples, rng)
    drafted = left > 0
    passes = drafted & (rng.random(samples) < middle[x] / distribution[x])
    excess = np.maximum(middle - distribution, 0.0)
    spare = excess if excess.sum() > 0 else middle
    x = np.where(passes, x, _draw(spare, samples, rng))
    x = np.where(drafted, x, _draw(middle, samples, rng))
    stands &= open_ & (rng.random(samples) < target[x] / middle[x])
    tokens += stands
    starts = ~passes
    left = left - 1
    if flush:
      open_ = open_ & (passes | ~drafted)
  return _mean(tokens), _mean(calls)


def _draw(distribution, shape, rng):
  return rng.choice(distribution.size, size=shape, p=distribution / distribution.sum())


def _mean(values):
  return values.mean(), values.std(ddof=1) / np.sqrt(values.size)
