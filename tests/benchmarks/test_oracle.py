"""The benchmark's oracle: a prescribed acceptance rate in bfloat16 and in float32."""

import jax
import numpy as np
import pytest

from benchmarks.oracle import Pair, Setup
from specdec_t5x.native import platforms

pytestmark = pytest.mark.slow

LENGTH = 48


@pytest.mark.parametrize(
  ("dtype", "target", "draft", "gamma", "batch", "temperature"),
  # The small target's argmax in bfloat16 depends on the shape of a call.
  [
    ("float32", "tiny", "tiny", 2, 4, 0.0),
    ("bfloat16", "small", "tiny", 5, 1, 0.0),
    ("bfloat16", "tiny", "int4", 3, 4, 1.0),
  ],
)
def test_alpha_is_as_prescribed_and_the_text_is_decoded(
  dtype, target, draft, gamma, batch, temperature
):
  pair = Pair(Setup(target, draft, batch, temperature, gamma, dtype, 8, LENGTH))
  pair.compile("iteration", "plain")
  text = pair.forced["target"]
  assert (pair.run("plain", LENGTH).tokens == text).all()
  for alpha in (0.0, 0.3, 0.65, 0.9, 1.0):
    decoded = pair.calls(alpha, 2)(1)
    assert (decoded.tokens == text).all()
    counts = decoded.statistics
    accepted, tried = counts.accepted.sum(), counts.acceptance_positions.sum()
    is_right = pair.forced_at(alpha, 1)["draft"] == text
    np.testing.assert_allclose(is_right.mean(axis=1), alpha, atol=1 / LENGTH)
    assert abs(accepted / tried - alpha) < (0.15 if 0 < alpha < 1 else 1e-6)


@pytest.mark.parametrize(("batch", "wide_costs_more"), [(2, True), (1, False)])
def test_blocks_and_second_drafts_cost_time_and_change_no_token(
  batch, wide_costs_more, monkeypatch
):
  # At batch 1 a GPU scores blocks of a fixed width.
  monkeypatch.setattr(platforms, "wide_blocks_cost_more", lambda: wide_costs_more)
  pair = Pair(Setup("tiny", "tiny", batch, 0.0, 3, "bfloat16", 8, 16, weights="int8"))
  pair.compile(*pair.functions)
  for name in pair.programs:
    assert (pair.run(name, 16).tokens == pair.forced["target"]).all(), name
  calls = pair.run("redrafted", 16).statistics.target_calls
  assert (pair.run("iteration", 16).statistics.target_calls == calls).all()
  kinds = {leaf.dtype.name for leaf in jax.tree.leaves(pair.params["target"])}
  assert "int8" in kinds
