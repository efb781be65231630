"""Logits that are no numbers give distributions that are none, wherever they stand."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from specdec_t5x.core.distributions import (
  GREEDY,
  LEVELS,
  Sampling,
  certain_log_prob,
  draw,
)
from specdec_t5x.native.distributions import adjusted_probs

pytestmark = pytest.mark.usefixtures("either_probs")
SAMPLINGS = (GREEDY, Sampling(), Sampling(0.5, top_k=2), Sampling(top_p=0.9))


# YNNPACK's maximum drops NaN; XLA on CPU uses it on 32,128 logits, and not on 300.
@pytest.mark.parametrize(
  ("size", "sampling"),
  [(3, SAMPLINGS[0]), (300, SAMPLINGS[1]), *((32_128, each) for each in SAMPLINGS)],
  ids=str,
)
def test_a_distribution_of_nan_or_infinity_is_nan(size, sampling):
  rng = np.random.default_rng(0)
  logits = rng.normal(size=(6, size)).astype(np.float32)
  logits[0, 0] = logits[1, -1] = logits[2] = np.nan
  logits[3, size // 2] = np.inf
  logits[4, : size // 2] = -np.inf
  run = jax.jit(
    lambda logits, uniforms: draw(logits, sampling, uniforms, adjusted_probs)
  )
  token, probs = run(logits, jnp.full((6, LEVELS), 0.3))
  np.testing.assert_array_equal(np.isnan(probs[:4]), True)
  np.testing.assert_allclose(probs[4:].sum(axis=1), 1.0, rtol=1e-5)
  assert ((token >= 0) & (token < size)).all()


@pytest.mark.parametrize(
  ("dtype", "at"), [("float16", 0), ("bfloat16", 4_000), ("float32", 8_063)]
)
def test_a_certain_token_is_lost_where_a_logit_is_no_number(dtype, at):
  logits = np.full((4, 8_064), 10.0, dtype=jnp.dtype(dtype))
  logits[1, at], logits[2, at], logits[3, at] = np.nan, np.inf, -np.inf
  found = certain_log_prob(jnp.asarray(logits))
  np.testing.assert_array_equal(found, [0.0, np.nan, np.nan, 0.0])
