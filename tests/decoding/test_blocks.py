"""Blocks of the target: paths of a tree, and blocks as wide as the drafts."""

import functools

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from specdec_t5x.core.rules import RULES
from specdec_t5x.core.tree import Tree
from specdec_t5x.core.types import Proposal
from specdec_t5x.decoding import loop
from specdec_t5x.decoding.loop import narrowest
from specdec_t5x.network.net import block_widths, extend_narrowly
from specdec_t5x.network.transformer import Transformer
from tests import networks
from tests.hash_model import TokenCache
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


def test_the_narrowest_block_for_all_drafts_is_scored():
  assert block_widths(1) == (1, 2)
  assert block_widths(3) == (1, 2, 4)
  assert block_widths(7) == (1, 2, 4, 8)
  assert block_widths(9) == (1, 2, 4, 8, 10)

  def extend(cache, tokens):
    """Returns the block's width as logits, and the block's tokens as features."""
    wide = jnp.full((*tokens.shape, 3), float(tokens.shape[1]))
    return wide, tokens[..., None] * 1.0, cache

  block = jnp.array([[7, 0, 1, 2, 3, 4], [7, 5, 6, 7, 8, 9]])
  widths = block_widths(5)
  cache = TokenCache(jnp.zeros(2, int), block)
  score = jax.jit(
    lambda sizes: extend_narrowly(
      extend, cache, block, widths, narrowest(widths, sizes)
    )
  )
  for sizes, width in [((0, 0), 1), ((1, 0), 2), ((2, 1), 4), ((1, 3), 4), ((4, 5), 6)]:
    logits, features, _ = score(jnp.array(sizes))
    assert logits.shape == (2, 6, 3)
    np.testing.assert_array_equal(logits[:, :width], width)
    np.testing.assert_array_equal(logits[:, width:], 0)
    np.testing.assert_array_equal(features[:, :width, 0], block[:, :width])


@pytest.mark.parametrize("name", RULES)
def test_rules_read_only_valid_places(name):
  rng = np.random.default_rng(0)
  rows = 64
  gamma = 5
  size = 4
  p = rng.dirichlet(np.ones(size), (rows, gamma + 1)).astype(np.float32)
  q = rng.dirichlet(np.ones(size), (rows, gamma)).astype(np.float32)
  tokens = rng.integers(size, size=(rows, gamma))
  num_valid = np.arange(rows) % gamma
  uniforms = jnp.asarray(rng.uniform(size=(rows, gamma + 1, 1)), jnp.float32)
  beyond = np.arange(gamma) >= num_valid[:, None]
  after = np.arange(gamma + 1) > num_valid[:, None]

  @jax.jit
  def verify(target_probs, tokens, probs, num_valid):
    proposal = Proposal.chain(tokens, probs, num_valid)
    return RULES[name].verify(target_probs, proposal, uniforms)

  def verdict(p_beyond, q_beyond, token_beyond):
    return verify(
      np.where(after[..., None], np.float32(p_beyond), p),
      np.where(beyond, token_beyond, tokens).astype(np.int32),
      np.where(beyond[..., None], np.float32(q_beyond), q),
      num_valid.astype(np.int32),
    )

  expected = verdict(p, q, tokens)
  assert (np.asarray(expected.last) <= num_valid).all()
  for garbage in (0.0, 1.0, np.nan):
    chex.assert_trees_all_equal(verdict(garbage, garbage, 0), expected)
