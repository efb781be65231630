"""The benchmark's oracle: a prescribed acceptance rate in bfloat16 and in float32."""

import jax.numpy as jnp
import numpy as np
import pytest

from benchmarks.oracle import Pair, Setup
from specdec_t5x.native import platforms

LENGTH = 48


@pytest.mark.slow
@pytest.mark.parametrize("wide_costs_more", [True, False])
@pytest.mark.parametrize(
  ("dtype", "target", "draft", "gamma", "batch", "temperature", "weights"),
  # The small target's argmax in bfloat16 depends on the shape of a call. At batch 1 a
  # GPU scores blocks of a fixed width.
  [
    ("float32", "tiny", "tiny", 2, 4, 0.0, "float32"),
    ("bfloat16", "small", "tiny", 5, 1, 0.0, "float32"),
    ("bfloat16", "tiny", "int4", 3, 4, 1.0, "float32"),
    ("bfloat16", "tiny", "tiny", 3, 1, 0.0, "int8"),
  ],
)
def test_every_program_decodes_the_text_and_alpha_is_as_prescribed(
  dtype, target, draft, gamma, batch, temperature, weights, wide_costs_more, monkeypatch
):
  monkeypatch.setattr(platforms, "wide_blocks_cost_more", lambda: wide_costs_more)
  setup = Setup(target, draft, batch, temperature, gamma, dtype, 8, LENGTH, weights)
  pair = Pair(setup)
  pair.compile({})
  text = pair.forced["target"]
  calls = {}
  for name, (_, arguments) in pair.functions.items():
    decoded = pair.programs[name](jnp.int32(LENGTH), *arguments)
    assert (decoded.tokens == text).all(), name
    calls[name] = decoded.statistics.target_calls
  # A second draft changes no count of calls.
  assert (calls["iteration"] == calls["redrafted"]).all()
  for alpha in (0.0, 0.3, 0.65, 0.9, 1.0):
    decoded = pair.calls(alpha, 2)(1)
    assert (decoded.tokens == text).all()
    counts = decoded.statistics
    accepted, tried = counts.accepted.sum(), counts.acceptance_positions.sum()
    is_right = pair.forced_at(alpha, 1)["draft"] == text
    np.testing.assert_allclose(is_right.mean(axis=1), alpha, atol=1 / LENGTH)
    assert abs(accepted / tried - alpha) < (0.15 if 0 < alpha < 1 else 1e-6)
