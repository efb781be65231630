"""The exact distribution of `distributions.sample` on the grid of uniforms.

Within a node of the tree, the drawn index never falls as the uniform grows. Bisection
on the compiled inversion finds the changes of the index. A uniform has 2^24 values. A
token's probability is the product of the token's shares of the values over all levels.
"""

import jax
import jax.numpy as jnp
import numpy as np

from specdec_t5x.core.distributions import _invert

VALUES = 2**24
_TINY = float(np.finfo(np.float32).tiny)


def grid_probs(probs):
  """Returns the drawn distribution, and the first and last uniforms of each token.

  Args:
    probs: the distribution, [V].

  Returns:
    The drawn distribution [V] in float64, first uniforms [V, L] and last uniforms
    [V, L], in multiples of 2^-24. A token without uniforms has last < first.
  """
  return _descend(jnp.asarray(probs, jnp.float32), _TINY)


def _descend(masses, least):
  size = masses.shape[0]
  if size <= 8:
    first, last = (edges.T for edges in _edges(masses[None], least))
    return (last - first + 1)[:, 0] / VALUES, first, last
  groups = jnp.pad(masses, (0, -size % 8)).reshape(8, -1)
  distribution, *above = _descend(groups.sum(axis=0), 16 * least)
  first, last = (edges.T.reshape(-1) for edges in _edges(groups.T, least))
  distribution = np.tile(distribution, 8) * (last - first + 1) / VALUES
  joined = [
    np.column_stack([np.tile(outer, (8, 1)), inner])[:size]
    for outer, inner in zip(above, (first, last), strict=True)
  ]
  return distribution[:size], *joined


def _edges(masses, least):
  """Returns the first and last uniforms of each member of n nodes, [n, 8] each."""
  ends = np.zeros(len(masses), int), np.full(len(masses), VALUES)
  changes = [_first(masses, least, index) for index in range(1, masses.shape[1])]
  first = [ends[0], *changes, ends[1]]
  return np.stack(first[:-1], axis=1), np.stack(first[1:], axis=1) - 1


def _first(masses, least, index):
  """Returns the first uniform that leads to `index` or beyond, or 2^24 if none does."""
  low = np.full(len(masses), -1)
  high = np.full(len(masses), VALUES)
  while (high - low > 1).any():
    middle = np.maximum((low + high) // 2, 0)
    reached = np.asarray(_drawn(masses, np.float32(middle / VALUES), least)) >= index
    low = np.where(reached, low, middle)
    # If high is already 0, the loop asks for 0 again: 0 was reached, so high stays.
    high = np.where(reached, middle, high)
  return high


_drawn = jax.jit(_invert, static_argnums=2)
