"""Speculative sampling (Chen et al., arXiv 2302.01318, algorithm 2) is our token rule.

In the paper's letters, q is the target's distribution, p is the draft's distribution, K
is the draft length, and r holds a uniform per acceptance test. (f)+ is max(0, f),
normalized.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from specdec_t5x.core.rules import RULES
from specdec_t5x.core.types import Proposal


def algorithm_2(q, p, drafted, r, draw):
  """Runs one pass of algorithm 2, line by line; `draw` samples from a distribution.

  Returns:
    The tokens that the pass adds.
  """
  added = []
  K = len(drafted)
  for t in range(K):
    x = drafted[t]
    if r[t] < min(1, q[t][x] / p[t][x]):
      added.append(x)
    else:
      residual = np.maximum(0, q[t] - p[t])
      added.append(draw(residual / residual.sum()))
      return added
  added.append(draw(q[K]))
  return added


@pytest.mark.parametrize("K", [1, 4])
def test_every_decision_equals_algorithm_2(K):
  rng = np.random.default_rng(K)
  rows = 400
  vocab = 5

  def distribution(*shape):
    return rng.dirichlet(np.full(vocab, 0.7), shape)

  q = distribution(rows, K + 1)
  p = distribution(rows, K)
  drafted = np.array([[rng.choice(vocab, p=each) for each in row] for row in p])
  r = rng.random((rows, K + 1))
  verdict = jax.jit(RULES["token"].verify)(
    jnp.asarray(q, jnp.float32),
    Proposal.chain(jnp.asarray(drafted), jnp.asarray(p, jnp.float32), K),
    jnp.asarray(r[..., None], jnp.float32),
  )
  lengths = set()
  for row in range(rows):

    def invert(distribution, u=r[row, K]):
      return int((np.cumsum(distribution) <= u).sum())

    theirs = algorithm_2(q[row], p[row], drafted[row], r[row], invert)
    accepted = int(verdict.last[row])
    ours = [*drafted[row, :accepted].tolist(), int(verdict.next_token[row])]
    assert ours == theirs
    lengths.add(len(theirs))
  assert lengths == set(range(1, K + 2))
