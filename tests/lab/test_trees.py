"""The best tree for heads, compared with every tree, and ranks of tokens."""

import functools

import gin
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from lab import trees
from lab.trees import best_tree
from specdec_t5x import api
from specdec_t5x.core.tree import Tree
from tests.benchmarks.conftest import named
from tests.exactness.test_trees import canonical
from tests.lab.conftest import ran


def tokens_per_call(tree, acceptance):
  """Returns E, the expected tokens per call of the target with a tree."""
  reach_probs = [1.0]
  num_children = {}
  for node, parent in enumerate(tree.parents, 1):
    rank = num_children.get(parent, 0)
    num_children[parent] = rank + 1
    chance = float(acceptance[tree.depths[node] - 1, rank])
    reach_probs.append(reach_probs[parent] * chance)
  return sum(reach_probs)


def falling(seed, depths, ranks):
  """Returns chances that fall with the rank; the sum of a depth is below 1."""
  drawn = np.random.default_rng(seed).dirichlet(np.ones(ranks + 1), depths)
  return -np.sort(-drawn[:, :-1], axis=1)


@pytest.mark.parametrize("seed", range(6))
def test_no_tree_gives_more_tokens_per_call(seed):
  for size in range(1, 7):
    acceptance = falling(seed, depths=6, ranks=6)
    tree = best_tree(acceptance, size)
    every = [tokens_per_call(Tree(parents), acceptance) for parents in canonical(size)]
    assert tree.size == size
    assert tokens_per_call(tree, acceptance) == pytest.approx(max(every))


def test_depth_and_ranks_are_limited_to_the_measurements():
  acceptance = falling(1, depths=2, ranks=2)
  tree = best_tree(acceptance, 6)
  assert tree.depth == 2
  assert sorted(tree.parents) == [0, 0, 1, 1, 2, 2]
  with pytest.raises(ValueError, match="got 6 of 2 depths and 2 ranks"):
    best_tree(acceptance, 7)
  with pytest.raises(ValueError, match="at least 1, got 0"):
    best_tree(acceptance, 0)


def test_acceptance_counts_only_tokens_that_a_tree_can_reach():
  """A token outside the two top ranks ends the path: deeper tokens do not count."""
  nan = np.nan
  ranks = np.array([[0, 0, 1, 2, nan, 0], [0, 1, 0, 0, nan, nan]], float)
  expected = [[3 / 5, 1 / 5], [2 / 3, 1 / 3]]
  np.testing.assert_allclose(trees.acceptance_of(ranks, 2), expected)


@pytest.mark.slow
def test_untrained_medusa_heads_have_the_ranks_of_the_target(files, heads):
  """Untrained Medusa heads repeat the target's distribution.

  The rank at a position is thus the rank of the next output token in the target's
  distribution.
  """
  target, medusa = api.load_model(files["target"]), api.load_model(heads["medusa"])
  texts = jnp.array([[5, 6, 1], [7, 8, 1]])
  outputs = jnp.array([[4, 9, 9, 1], [3, 1, 0, 0]])
  ranks = np.asarray(trees.ranks_of((target, medusa), texts, outputs))
  np.testing.assert_array_equal(np.isnan(ranks[0]), [[0, 0, 0, 1], [0, 1, 1, 1]])
  decoder_inputs = jnp.pad(outputs, ((0, 0), (1, 0)))[:, :-1]
  apply = functools.partial(target.network.apply, enable_dropout=False)
  logits = jax.jit(apply)({"params": target.params}, texts, decoder_inputs, outputs)
  for row, at in zip(*np.nonzero(~np.isnan(ranks[0])), strict=True):
    distribution = np.asarray(logits[row, at])
    more_likely = distribution > distribution[outputs[row, at + 1]]
    assert ranks[0, row, at] == more_likely.sum()


@pytest.mark.slow
def test_the_fastest_tree_is_written_to_a_gin_file(files, heads, tmp_path):
  flags = ["--max-length=40", "--num-inputs=3", "--sizes", "2", "4", "--ranks=3"]
  found = ran("tree", tmp_path, *named(files, draft=heads["parallel"]), *flags)
  chances = np.array(found["acceptance"])
  for row in found["rows"]:
    assert row["identical"] == "3/3"
    if row["shape"].startswith("tree"):
      assert tuple(row["parents"]) == best_tree(chances, row["nodes"]).parents
  best = max(found["rows"], key=lambda row: row["in_all"])
  gin.parse_config((tmp_path / "tree.gin").read_text())
  parents = gin.query_parameter("tree.Tree.parents")
  assert Tree(parents) == Tree(tuple(best["parents"]))
