"""Benchmarks of heads: ranks of the target's tokens and the fastest tree."""

import functools

import gin
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from benchmarks import tree
from benchmarks.trees import best_tree
from specdec_t5x import api
from specdec_t5x.core.tree import Tree
from tests.benchmarks.conftest import named, ran

pytestmark = pytest.mark.slow


def test_acceptance_counts_only_tokens_that_a_tree_can_reach():
  """A token outside the two top ranks ends the path: deeper tokens do not count."""
  nan = np.nan
  ranks = np.array([[0, 0, 1, 2, nan, 0], [0, 1, 0, 0, nan, nan]], float)
  expected = [[3 / 5, 1 / 5], [2 / 3, 1 / 3]]
  np.testing.assert_allclose(tree.acceptance_of(ranks, 2), expected)


def test_untrained_medusa_heads_have_the_ranks_of_the_target(files, heads):
  """Untrained Medusa heads repeat the target's distribution.

  The rank at a position is thus the rank of the next output token in the target's
  distribution.
  """
  target, medusa = api.load_model(files["target"]), api.load_model(heads["medusa"])
  texts = jnp.array([[5, 6, 1], [7, 8, 1]])
  outputs = jnp.array([[4, 9, 9, 1], [3, 1, 0, 0]])
  ranks = np.asarray(tree.ranks_of((target, medusa), texts, outputs))
  np.testing.assert_array_equal(np.isnan(ranks[0]), [[0, 0, 0, 1], [0, 1, 1, 1]])
  decoder_inputs = jnp.pad(outputs, ((0, 0), (1, 0)))[:, :-1]
  apply = functools.partial(target.network.apply, enable_dropout=False)
  logits = jax.jit(apply)({"params": target.params}, texts, decoder_inputs, outputs)
  for row, at in zip(*np.nonzero(~np.isnan(ranks[0])), strict=True):
    distribution = np.asarray(logits[row, at])
    more_likely = distribution > distribution[outputs[row, at + 1]]
    assert ranks[0, row, at] == more_likely.sum()


@pytest.mark.usefixtures("counted_clock")
def test_the_fastest_tree_is_written_to_a_gin_file(files, heads, tmp_path, capsys):
  flags = ["--max-length=40", "--num-inputs=3", "--sizes", "2", "4", "--ranks=3"]
  found = ran("tree", tmp_path, *named(files, draft=heads["parallel"]), *flags)
  chances = np.array(found["acceptance"])
  for row in found["rows"]:
    if row["draft"].startswith("tree"):
      assert tuple(row["parents"]) == best_tree(chances, row["nodes"]).parents
    plain = 1e3 * found["plain_seconds"]
    assert row["speed"] == pytest.approx(
      row["tokens_per_call"] * plain / row["milliseconds"]
    )
  best = max(found["rows"], key=lambda row: row["speed"])
  gin.parse_config((tmp_path / "tree.gin").read_text())
  parents = gin.query_parameter("tree.Tree.parents")
  assert Tree(parents) == Tree(tuple(best["parents"]))
  assert "Plain decoding" in capsys.readouterr().out
