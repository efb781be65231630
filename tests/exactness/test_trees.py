"""The rules are exact on every tree of up to five nodes, over three tokens.

The oracle explores one iteration after an empty output, and the target continues alone.
Distributions depend on the whole prefix, so later iterations are like the first.
tests/core/test_tree.py has the relations of the trees' nodes. `checks` and test_loop.py
drive the loop on trees.
"""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from specdec_t5x.core.distributions import GREEDY, Sampling
from specdec_t5x.core.rules import RULES
from specdec_t5x.core.tree import Tree
from specdec_t5x.core.tree_per_row import TreePerRow
from specdec_t5x.core.types import Proposal
from specdec_t5x.drafters.siblings import SIBLINGS
from tests.exactness import distributions
from tests.exactness.driving import PLACES, assert_all_are, probs_of_verdicts, rule_rows
from tests.exactness.enumeration import Setting, explore, iterate, target_probs
from tests.exactness.oracles import JUDGES

pytestmark = pytest.mark.slow

MOST = 5


def canonical(size):
  """Returns all trees of `size` nodes: earlier parents, in non-decreasing order."""
  choices = itertools.product(*(range(node) for node in range(1, size + 1)))
  return [parents for parents in choices if list(parents) == sorted(parents)]


EVERY_TREE = [parents for size in range(1, MOST + 1) for parents in canonical(size)]
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


def setting_of(rule, siblings, sampling, parents):
  # Certain tokens are the likeliest tokens at temperature 1.
  models = (
    distributions.sampled(1, 3, sampling),
    distributions.sampled(2, 3, Sampling()),
  )
  room = Tree(parents).depth + 1
  return Setting(*models, JUDGES[rule], parents, room, siblings=siblings)


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: f"{kind[0]}-{kind[1]}")
def test_outputs_have_the_target_s_distribution_on_every_tree(kind):
  rule, siblings, _ = kind
  settings = [setting_of(*kind, parents) for parents in EVERY_TREE]
  paths = []
  parts = []
  for setting in settings:
    explored = explore(lambda world, setting=setting: iterate(world, setting, ()))
    paths.append([((), path) for path in explored])
    *columns, uniforms = rule_rows(setting, paths[-1], MOST)
    parents = np.pad(setting.tree, (0, MOST - len(setting.tree)), mode="edge")
    parts.append((*columns, np.tile(parents, (len(uniforms), 1)), uniforms))
  columns = [jnp.asarray(np.concatenate(x)) for x in zip(*parts, strict=True)]

  @jax.jit
  def verify(p, tokens, q, is_valid, parents, uniforms):
    q = None if siblings == "likeliest" else q  # The tokens are certain.
    proposal = Proposal(tokens, q, is_valid, TreePerRow(parents))
    verdict = RULES[rule].verify(p, proposal, uniforms)
    return jnp.stack([verdict.last, verdict.next_token], axis=1)

  ends = np.cumsum([PLACES * len(each) for each in paths])[:-1]
  verdicts = np.split(np.asarray(verify(*columns)), ends)
  for setting, own, found in zip(settings, paths, verdicts, strict=True):

    def then(prefix, p=setting.target):
      return [((*prefix, x), p(prefix)[x]) for x in np.flatnonzero(p(prefix)).tolist()]

    by_place = [
      probs_of_verdicts(setting, own, each, then) for each in np.split(found, PLACES)
    ]
    assert_all_are(by_place, target_probs(setting))


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
