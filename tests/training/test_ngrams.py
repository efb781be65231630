"""Counting of n-grams, and the distributions of the table."""

import collections

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from specdec_t5x.core import tree
from specdec_t5x.network.functional import initial_variables
from specdec_t5x.network.ngram import NgramConfig, NgramTable, context_hash
from specdec_t5x.training.ngrams import estimate
from tests import networks

TEXTS = [[2, 3, 2, 4, 1], [2, 3, 5, 1], [3, 2, 3, 2, 1], [1]]
SIZE = 7


def oracle(texts, order, width, context):
  """Counts q(x | context) in dictionaries by the formula of network/ngram.py."""
  counts = collections.Counter(token for text in texts for token in text)
  distribution = np.array([counts[x] / counts.total() for x in range(SIZE)])
  for length in range(1, min(order - 1, len(context)) + 1):
    after = collections.Counter()
    for text in texts:
      padded = (0, *text)
      for end in range(length, len(padded)):
        if padded[end - length : end] == tuple(context[-length:]):
          after[padded[end]] += 1
    if not after:
      continue
    commonest = sorted(after.items(), key=lambda item: (-item[1], item[0]))[:width]
    probs = {x: (count - 0.5) / after.total() for x, count in commonest}
    distribution *= 1 - sum(probs.values())
    for x, mass in probs.items():
      distribution[x] += mass
  return distribution


def distributions(table, params, tokens):
  """Returns the network's distribution after every token."""
  distribution = jax.jit(lambda params: table.apply({"params": params}, *[tokens] * 3))
  return np.exp(distribution(params))


@pytest.mark.parametrize(("order", "width"), [(1, 1), (2, 2), (3, 6), (5, 2)])
def test_the_table_has_the_interpolated_distribution(order, width):
  table, params = estimate(TEXTS, SIZE, order, width)
  # Contexts that were counted, were counted in part, and were never counted.
  contexts = [(0, 2, 3, 2, 4), (0, 3, 2, 3, 2), (0, 6, 2, 6, 6), (0, 2, 3, 5, 5)]
  found = distributions(table, params, jnp.array(contexts))
  expected = [
    [oracle(TEXTS, order, width, context[: i + 1]) for i in range(len(context))]
    for context in contexts
  ]
  np.testing.assert_allclose(found, expected, atol=1e-6)
  np.testing.assert_allclose(found.sum(axis=-1), 1, atol=1e-6)


def test_a_table_read_at_a_lower_order_equals_the_table_of_the_lower_order():
  _, params = estimate(TEXTS, SIZE, 4, 6)
  sizes = tuple(params[f"contexts_{i}"]["hashes"].size for i in range(3))
  bigrams = NgramTable(NgramConfig(SIZE, sizes, 6, order=2))
  alone, alone_params = estimate(TEXTS, SIZE, 2, 6)
  tokens = jnp.array([[0, 2, 3, 2, 5]])
  np.testing.assert_array_equal(
    distributions(bigrams, params, tokens), distributions(alone, alone_params, tokens)
  )
  # Contexts longer than the looked-up contexts are also parameters.
  made = jax.eval_shape(lambda: initial_variables(bigrams, jax.random.key(0)))
  assert jax.tree.structure(made["params"]) == jax.tree.structure(params)


def test_only_the_most_common_contexts_are_kept():
  _, params = estimate(TEXTS, SIZE, 2, 4, max_contexts=3)
  # Counts of 5, 4 and 4; the remaining contexts occur once.
  commonest = context_hash(np.array([[2], [0], [3]]))
  np.testing.assert_array_equal(params["contexts_0"]["hashes"], np.sort(commonest))


def test_the_order_of_many_sequences_does_not_change_the_counts():
  """The sequences are counted in chunks of 50,000."""
  sequences = [TEXTS[0]] * 50_000 + [TEXTS[1]] * 10
  _, params = estimate(sequences, SIZE, 3, 4)
  _, backwards = estimate(sequences[::-1], SIZE, 3, 4)
  jax.tree.map(np.testing.assert_array_equal, params, backwards)


def test_blocks_after_rollbacks_and_ragged_rows_match_a_single_pass():
  table, params = estimate(TEXTS, SIZE, 3, 4)
  rows = jnp.array([[0, 2, 3, 2, 4], [0, 3, 2, 3, 5]])
  expected = distributions(table, params, rows)
  extend, cache = networks.start(table, params, jnp.ones((2, 3), jnp.int32), 8)
  _, _, cache = extend(cache, jnp.array([[0, 2, 6], [0, 6, 6]]))
  cache = cache.at(jnp.array([2, 1]))
  logits, _, cache = extend(cache, jnp.array([[3, 2], [3, 2]]))
  np.testing.assert_allclose(np.exp(logits[0]), expected[0, 2:4], rtol=1e-6)
  np.testing.assert_allclose(np.exp(logits[1]), expected[1, 1:3], rtol=1e-6)
  np.testing.assert_array_equal(cache.index, [4, 3])


def test_nodes_of_a_tree_have_the_distributions_of_their_paths():
  """The tree is drafted level by level, from two rows with 2 tokens and 1 token."""
  table, params = estimate(TEXTS, SIZE, 4, 4)
  prefixes = jnp.array([[0, 2], [0, 6]])
  drafted = np.array([[3, 5, 2, 4, 2], [2, 3, 4, 3, 5]])
  shape = tree.Tree((0, 0, 1, 1, 2))
  extend, cache = networks.start(table, params, jnp.ones((2, 3), jnp.int32), 9)
  _, _, cache = extend(cache, prefixes)
  cache = cache.at(jnp.array([2, 1]))
  lengths = cache.index
  found = []
  for level in (np.array([1, 2]), np.array([3, 4, 5])):
    last = level[-1] + 1
    positions = lengths[:, None] + shape.depths[1:last] - 1
    visible = np.broadcast_to(shape.sees[level, 1:last], (2, level.size, last - 1))
    logits, _, cache = extend(cache, drafted[:, level - 1], positions, visible)
    found.append(np.exp(logits))
  found = np.concatenate(found, axis=1)
  for row, node in np.ndindex(2, shape.size):
    path = np.flatnonzero(shape.sees[node + 1, 1:])
    tokens = [*prefixes[row, : lengths[row]].tolist(), *drafted[row, path].tolist()]
    expected = oracle(TEXTS, 4, 4, tuple(tokens))
    np.testing.assert_allclose(found[row, node], expected, atol=1e-6)


def test_prompts_are_part_of_the_context():
  table, params = estimate(TEXTS, SIZE, 3, 4)
  prompts = jnp.array([[2, 3], [3, 0]])
  extend, cache = networks.start(table, params, prompts, 4, prompts=prompts)
  np.testing.assert_array_equal(cache.index, [2, 1])
  logits, _, _ = extend(cache, jnp.array([[3], [3]]))
  expected = distributions(table, params, jnp.array([[0, 2, 3], [0, 3, 0]]))
  np.testing.assert_allclose(np.exp(logits[0, 0]), expected[0, 2], rtol=1e-6)
  np.testing.assert_allclose(np.exp(logits[1, 0]), expected[1, 1], rtol=1e-6)
