"""A two-level hierarchy, simulated in NumPy: the oracle of `lab.hierarchy.planner`.

Shapes: G places of a window, V vocabulary.
"""

import numpy as np


def hierarchy_tokens(p, q, lower, gamma, samples, rng, flush=False):
  """Simulates windows of a two-level hierarchy whose lower drafts have gamma tokens.

  At each place the target's distribution is p, the middle network's q and the lowest
  draft's `lower`, each [G, V]. With `flush` a window ends with the first corrected
  token. Which of a window's tokens were drafted below and which corrected matters for
  whether the target accepts them, and is drawn here; a closed form that takes the
  levels for independent leaves it out. (Globerson et al., arXiv 2510.19705.)

  Returns tokens a call of the target, and calls of the middle network for it: the mean
  of each, with its standard error.
  """
  left, tokens = np.zeros(samples, int), np.ones(samples)
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
    starts, left = ~passes, left - 1
    if flush:
      open_ = open_ & (passes | ~drafted)
  return _mean(tokens), _mean(calls)


def _draw(distribution, shape, rng):
  return rng.choice(distribution.size, size=shape, p=distribution / distribution.sum())


def _mean(values):
  return values.mean(), values.std(ddof=1) / np.sqrt(values.size)
