"""Properties that hold for any distributions, drafts, uniforms and neighbours."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from specdec_t5x.core.distributions import GREEDY, Sampling
from specdec_t5x.core.rules import RULES
from specdec_t5x.core.tree import chain, delayed
from specdec_t5x.core.types import Proposal
from specdec_t5x.native.distributions import adjusted_probs

# A fixed shape per array lets one program serve all examples.
ROWS = 4
GAMMA = 3
SIZE = 5
CONTEXTS = 11  # The number of distributions per row, for all prefixes of a draft.
CHAIN = chain(GAMMA)
TREE = delayed(0, 2, GAMMA)
EXAMPLES = settings(max_examples=20, deadline=None, derandomize=True)
seeds = st.integers(0, 2**31 - 1)
SAMPLING = [Sampling(), Sampling(0.3), Sampling(1.0, top_k=2), Sampling(1.0, top_p=0.5)]


def logits(*shape):
  """Returns a strategy for logits; -inf excludes some tokens, but never all."""
  finite = st.floats(-60, 60, width=32)
  values = st.one_of(finite, finite, st.just(-np.inf))
  return arrays.arrays(np.float32, shape, elements=values).map(
    lambda x: np.where(np.isneginf(x).all(-1, keepdims=True), 0.0, x)
  )


@EXAMPLES
@given(logits(ROWS, SIZE), st.sampled_from([*SAMPLING, GREEDY]))
def test_adjusted_distributions_are_distributions(values, sampling):
  probs = np.asarray(adjusted_probs(jnp.asarray(values, jnp.float32), sampling))
  assert np.isfinite(probs).all()
  np.testing.assert_allclose(probs.sum(-1), 1, rtol=1e-5)
  assert (probs[np.isneginf(values)] == 0).all()


@st.composite
def judged(draw, tree):
  """Draws distributions, drafts from the distributions, valid nodes and uniforms."""

  def distribution():
    return np.array(jax.nn.softmax(draw(logits(ROWS, CONTEXTS, SIZE))))

  rng = np.random.default_rng(draw(seeds))
  rows = np.arange(ROWS)
  p = distribution()
  q = distribution()
  # Nodes with equal prefixes have equal distributions.
  spelt = np.zeros((ROWS, tree.size + 1), int)
  tokens = np.zeros((ROWS, tree.size), int)
  is_valid = np.ones((ROWS, tree.size + 1), bool)
  for node, parent in enumerate(tree.parents, 1):
    masses = np.cumsum(q[rows, spelt[:, parent] % CONTEXTS], -1)
    x = (masses <= rng.random((ROWS, 1)) * masses[:, -1:]).sum(-1)
    tokens[:, node - 1] = x = np.minimum(x, SIZE - 1)
    spelt[:, node] = spelt[:, parent] * (SIZE + 1) + x + 1
    is_valid[:, node] = is_valid[:, parent] & (rng.random(ROWS) < 0.8)
  at = rows[:, None], spelt % CONTEXTS
  draft_probs = tree.of_parents(jnp.asarray(q[at]))
  uniforms = rng.random((ROWS, tree.size + 1, 1)).astype(np.float32)
  uniforms[rng.random(uniforms.shape) < 0.2] = 0.0
  proposal = Proposal(
    jnp.asarray(tokens), draft_probs, jnp.asarray(is_valid[:, 1:]), tree
  )
  return jnp.asarray(p[at]), proposal, jnp.asarray(uniforms)


@functools.cache
def compiled(name):
  return jax.jit(RULES[name].verify)


def row(tree, i):
  """Returns a batch with row i in every place."""
  return jax.tree.map(lambda x: jnp.broadcast_to(x[i], x.shape), tree)


@pytest.mark.parametrize("name", sorted(RULES))
@EXAMPLES
@given(data=st.data())
def test_verdicts_are_possible_and_depend_on_their_row_alone(name, data):
  tree = TREE if RULES[name].takes_trees else CHAIN
  inputs = data.draw(judged(tree))
  target_probs = np.asarray(inputs[0])
  proposal = inputs[1]
  verdict = compiled(name)(*inputs)
  for i in range(ROWS):
    last = int(verdict.last[i])
    next_token = int(verdict.next_token[i])
    assert 0 <= next_token < SIZE
    distributions = target_probs[i]
    tokens = np.asarray(proposal.tokens[i])
    # The target could produce every accepted or drawn token.
    assert distributions[last, next_token] > 0
    while last:
      parent = tree.parents[last - 1]
      assert proposal.is_valid[i, last - 1]
      assert distributions[parent, tokens[last - 1]] > 0
      last = parent
  chosen = data.draw(st.integers(0, ROWS - 1))
  alone = compiled(name)(*(row(part, chosen) for part in inputs))
  for one, other in zip(jax.tree.leaves(verdict), jax.tree.leaves(alone), strict=True):
    assert one[chosen] == other[0]
