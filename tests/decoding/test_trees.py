"""Trees of drafts, scored in a real network's cache."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from specdec_t5x.core.tree import Tree, delayed
from specdec_t5x.core.types import Proposal
from specdec_t5x.decoding import step
from specdec_t5x.network.transformer import Transformer
from tests import networks
from tests.t5x_bridge import tiny

NETWORK = Transformer(tiny.config(2, 16, 30))
INPUTS = jnp.array([[5, 6, 7, 1], [9, 3, 1, 0]])
ROWS, PREFIX = 2, 3
# Three candidates; a stem that branches; nodes of any number of children.
TREES = [delayed(0, 3, 4), delayed(2, 2, 4), Tree((0, 0, 1, 1, 2, 3, 3, 5))]


def random_tokens(seed, *shape):
  return jnp.asarray(np.random.default_rng(seed).integers(2, 30, shape), jnp.int32)


def line(tree, node):
  """The drafted nodes from the root to one of them."""
  return [*line(tree, tree.parents[node - 1]), node] if node else []


@pytest.mark.parametrize("tree", TREES, ids=str)
def test_each_path_is_scored_as_if_it_were_alone(tree):
  params = networks.initialize(NETWORK, INPUTS)["params"]
  extend, empty = networks.start(NETWORK, params, INPUTS, 40)
  prefix, tokens = random_tokens(1, ROWS, PREFIX), random_tokens(2, ROWS, tree.size)
  cache = extend(empty, prefix)[2].at(jnp.full(ROWS, PREFIX - 1))
  draft = Proposal(tokens, None, jnp.ones(tokens.shape, bool), tree)
  score = jax.jit(functools.partial(step.score_tree, extend))
  logits, features, _ = score(cache, prefix[:, -1], draft)
  for node in set(range(1, tree.size + 1)) - set(tree.parents):
    path = np.array(line(tree, node))
    whole = jnp.concatenate([prefix, tokens[:, path - 1]], axis=1)
    alone, alone_features, _ = extend(empty, whole)
    last, path = slice(PREFIX - 1, None), [0, *path]
    np.testing.assert_allclose(logits[:, path], alone[:, last], atol=1e-5)
    np.testing.assert_allclose(features[:, path], alone_features[:, last], atol=1e-5)
