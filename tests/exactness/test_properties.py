"""Properties that hold for extreme distributions, drafts, uniforms and neighbours."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from specdec_t5x.core.rules import RULES
from specdec_t5x.core.rules.lenient import Lenient, LenientGreedy
from specdec_t5x.core.tree import chain
from specdec_t5x.core.types import Proposal
from specdec_t5x.drafters.tree_draft import delayed

ROWS = 1000
GAMMA = 3
SIZE = 5
CONTEXTS = 11  # The number of distributions per row, for all prefixes of a draft.


def extreme_logits(rng, *shape):
  """Returns logits of many sizes; -inf excludes some tokens, but never all."""
  scale = rng.choice([0.1, 3.0, 60.0], shape[:-1])[..., None]
  logits = scale * rng.uniform(-1, 1, shape)
  logits[rng.random(shape) < 0.3] = -np.inf
  logits[np.isneginf(logits).all(-1)] = 0.0
  return logits.astype(np.float32)


def drafted(tree):
  """Returns target_probs, a proposal drawn from q, and uniforms, some of them 0."""
  rng = np.random.default_rng(1)
  rows = np.arange(ROWS)
  p, q = np.array(jax.nn.softmax(extreme_logits(rng, 2, ROWS, CONTEXTS, SIZE)))
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


@pytest.mark.parametrize(
  "rule",
  [*RULES.values(), Lenient(1e-60), LenientGreedy(1e-60)],
  ids=lambda rule: type(rule).__name__,
)
def test_verdicts_are_possible_and_depend_on_their_row_alone(rule):
  tree = delayed(0, 2, GAMMA) if rule.takes_trees else chain(GAMMA)
  inputs = drafted(tree)
  verify = jax.jit(rule.verify)
  verdict = verify(*inputs)
  p, tokens, is_valid, last, next_token = map(
    np.asarray,
    (inputs[0], inputs[1].tokens, inputs[1].is_valid, verdict.last, verdict.next_token),
  )
  rows, node = np.arange(ROWS), last
  # The target could produce every accepted or drawn token.
  assert (p[rows, node, next_token] > 0).all()
  assert np.unique(node).size > GAMMA
  while node.any():
    rows, node = rows[node > 0], node[node > 0]
    parent = np.array(tree.parents)[node - 1]
    assert is_valid[rows, node - 1].all()
    assert (p[rows, parent, tokens[rows, node - 1]] > 0).all()
    node = parent
  order = np.random.default_rng(2).permutation(ROWS)
  again = verify(*jax.tree.map(lambda x: x[order], inputs))
  np.testing.assert_array_equal(again.last, last[order])
  np.testing.assert_array_equal(again.next_token, next_token[order])
