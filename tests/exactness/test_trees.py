"""The rules are exact on all trees of up to five nodes, over three tokens."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from specdec_t5x.core.distributions import GREEDY, Sampling
from specdec_t5x.core.rules import RULES
from specdec_t5x.core.tree import Tree, delayed
from specdec_t5x.core.types import Proposal
from specdec_t5x.drafters.siblings import SIBLINGS
from tests.exactness import tree_steps, trees
from tests.exactness.driving import assert_the_loop_is_exact
from tests.exactness.test_loop import SMALL_DRAFT, SMALL_TARGET

pytestmark = pytest.mark.slow

EVERY_TREE = [
  parents for size in range(1, tree_steps.MOST + 1) for parents in trees.canonical(size)
]
# (rule, siblings, sampling).
KINDS = [
  ("greedy", "likeliest", GREEDY),
  ("kseq", "independent", Sampling()),
  *(("recursive", kind, Sampling()) for kind in SIBLINGS),
  *(("traversal", kind, Sampling()) for kind in SIBLINGS),
]


def test_the_number_of_trees_of_each_size_is_a_catalan_number():
  sizes = [len(parents) for parents in EVERY_TREE]
  assert [sizes.count(size) for size in range(1, 6)] == [1, 2, 5, 14, 42]


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: f"{kind[0]}-{kind[1]}")
def test_outputs_have_the_target_s_distribution_on_every_tree(kind):
  tree_steps.assert_exact_on(EVERY_TREE, *kind)


# ---- The library's drafter of trees; `checks` has further trees. ----


@pytest.mark.parametrize(
  ("rule", "tree", "siblings"),
  [
    ("traversal", delayed(1, 2, 2), "likeliest"),
    ("recursive", Tree((0, 0, 2)), "distinct"),
  ],
)
def test_drafted_trees_keep_the_target_s_distribution(rule, tree, siblings):
  setting = (SMALL_TARGET, SMALL_DRAFT, rule, tree, 4, siblings)
  assert_the_loop_is_exact(setting, Sampling())


# ---- Rules of trees on chains. ----


@pytest.mark.parametrize("is_certain", [False, True], ids=["drawn", "certain"])
@pytest.mark.parametrize(
  ("of_trees", "of_chains"),
  [("traversal", "block"), ("recursive", "token"), ("kseq", "token")],
)
def test_rules_of_trees_equal_rules_of_chains_on_a_chain_draw_for_draw(
  of_trees, of_chains, is_certain
):
  rng = np.random.default_rng(0)
  rows = 4000
  gamma = 5
  size = 4
  # Some tokens have no mass, and some distributions of p and q are equal.
  p, q = rng.dirichlet(np.full(size, 0.4), (2, rows, gamma + 1)).astype(np.float32)
  p, q = (np.where(x > 0.02, x, 0) for x in (p, q))
  p, q = (x / x.sum(-1, keepdims=True) for x in (p, q))
  q = np.where(rng.random((rows, gamma + 1, 1)) < 0.2, p, q)[:, :-1]
  draws = rng.random((rows, gamma, 1))
  tokens = jnp.asarray((np.cumsum(q, -1) <= draws).sum(-1).clip(0, size - 1))
  distributions = None if is_certain else jnp.asarray(q)
  num_valid = jnp.asarray(rng.integers(0, gamma + 1, rows))
  proposal = Proposal.chain(tokens, distributions, num_valid)
  uniforms = jnp.asarray(rng.random((rows, gamma + 1, 1)), jnp.float32)
  one, other = (
    jax.jit(RULES[name].verify)(jnp.asarray(p), proposal, uniforms)
    for name in (of_trees, of_chains)
  )
  np.testing.assert_array_equal(one.last, other.last)
  np.testing.assert_array_equal(one.next_token, other.next_token)
  assert np.unique(one.last).tolist() == list(range(gamma + 1))
