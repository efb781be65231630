"""Trees of drafts are scored in a real network's cache."""

import functools

import jax
import jax.numpy as jnp
import numpy as np

from specdec_t5x.core.tree import Tree
from specdec_t5x.core.types import Proposal
from specdec_t5x.decoding import loop
from specdec_t5x.network.transformer import Transformer
from tests import networks
from tests.t5x_bridge import tiny

NETWORK = Transformer(tiny.config(2, 16, 30))
INPUTS = jnp.array([[5, 6, 7, 1], [9, 3, 1, 0]])
ROWS = 2
PREFIX = 3
# Nodes with zero to two children, and paths of several lengths.
TREE = Tree((0, 0, 1, 1, 2, 3, 3, 5))


def random_tokens(seed, *shape):
  return jnp.asarray(np.random.default_rng(seed).integers(2, 30, shape), jnp.int32)


def line(node):
  """Returns the drafted nodes from the root to a node."""
  return [*line(TREE.parents[node - 1]), node] if node else []


def test_each_path_of_a_tree_is_scored_like_a_single_path():
  params = networks.initialize(NETWORK, INPUTS)["params"]
  extend, empty = networks.start(NETWORK, params, INPUTS, 40)
  prefix = random_tokens(1, ROWS, PREFIX)
  tokens = random_tokens(2, ROWS, TREE.size)
  cache = extend(empty, prefix)[2].at(jnp.full(ROWS, PREFIX - 1))
  draft = Proposal(tokens, None, jnp.ones(tokens.shape, bool), TREE)
  score = jax.jit(functools.partial(loop.score_tree, extend))
  logits, features, _ = score(cache, prefix[:, -1], draft)
  for node in set(range(1, TREE.size + 1)) - set(TREE.parents):
    path = np.array(line(node))
    whole = jnp.concatenate([prefix, tokens[:, path - 1]], axis=1)
    alone, alone_features, _ = extend(empty, whole)
    last = slice(PREFIX - 1, None)
    path = [0, *path]
    np.testing.assert_allclose(logits[:, path], alone[:, last], atol=1e-5)
    np.testing.assert_allclose(features[:, path], alone_features[:, last], atol=1e-5)
