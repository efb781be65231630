"""The probs that `distributions.sample` draws from on the grid of uniforms, exactly.

Within a node of the tree the index drawn never falls as the uniform grows, so where it
changes is found by bisection, on the compiled inversion itself. A uniform has 2^24
values; a token's probability is the product of its shares of them, level by level.
"""

import jax
import jax.numpy as jnp
import numpy as np

from specdec_t5x.core.distributions import _invert

VALUES = 2**24
_TINY = float(np.finfo(np.float32).tiny)


def grid_probs(probs):
  """The probs drawn, [V] in float64, and each token's first and last uniforms, [V, L].

  Uniforms are counted in multiples of 2^-24; where last < first, there is none.
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
  """The first and the last uniform that lead to each member of n nodes, [n, 8] each."""
  ends = np.zeros(len(masses), int), np.full(len(masses), VALUES)
  changes = [_first(masses, least, index) for index in range(1, masses.shape[1])]
  first = [ends[0], *changes, ends[1]]
  return np.stack(first[:-1], axis=1), np.stack(first[1:], axis=1) - 1


def _first(masses, least, index):
  """The first uniform that leads to `index` or beyond; 2^24 where none does."""
  low, high = np.full(len(masses), -1), np.full(len(masses), VALUES)
  while (high - low > 1).any():
    middle = np.maximum((low + high) // 2, 0)
    reached = np.asarray(_drawn(masses, np.float32(middle / VALUES), least)) >= index
    # Where high is 0 already, 0 is asked again: it was reached, and stays.
    low, high = np.where(reached, low, middle), np.where(reached, middle, high)
  return high


_drawn = jax.jit(_invert, static_argnums=2)
