"""The native distributions equal float64, row by row."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from specdec_t5x.core.distributions import Sampling
from specdec_t5x.native import library
from specdec_t5x.native.distributions import adjusted_probs
from tests.exactness.distributions import adjusted
from tests.kernels import needs_kernels, normal

pytestmark = [pytest.mark.slow, needs_kernels]
SAMPLINGS = (
  Sampling(),
  Sampling(0.3),
  Sampling(top_k=40),
  Sampling(1.7, top_k=300),
  Sampling(top_p=0.9),
)


def distributions(logits, sampling):
  return np.asarray(jax.jit(adjusted_probs, static_argnums=1)(logits, sampling))


def exactly(row, sampling):
  """Returns the float64 distribution of logits divided by T in float32."""
  row = row / np.float32(sampling.temperature)
  return adjusted(row, dataclasses.replace(sampling, temperature=1.0))


@pytest.mark.parametrize("sampling", SAMPLINGS, ids=str)
@pytest.mark.parametrize("size", [1, 16, 257, 32_128])
def test_distributions_equal_float64(size, sampling):
  logits = 4 * normal(0, 3, size)
  exact = [exactly(row, sampling) for row in logits]
  distances = np.abs(distributions(logits, sampling) - exact).sum(axis=1) / 2
  np.testing.assert_array_less(distances, 1e-6)


@pytest.mark.parametrize("sampling", SAMPLINGS, ids=str)
def test_a_row_does_not_depend_on_other_rows(sampling):
  logits = 4 * normal(0, 19, 3_000)
  together = distributions(logits, sampling)
  np.testing.assert_array_equal(
    distributions(logits[::-1].copy(), sampling)[::-1], together
  )
  np.testing.assert_array_equal(
    distributions(logits.reshape(19, 1, -1), sampling)[:, 0], together
  )
  for row, distribution in zip(logits, together, strict=True):
    np.testing.assert_array_equal(distributions(row, sampling), distribution)


def test_logits_far_below_the_maximum_have_zero_probability():
  distribution = distributions(np.array([0, -86, -88, -1e30], np.float32), Sampling())
  assert distribution[1] > 0
  np.testing.assert_array_equal(distribution[2:], 0)


def test_vmap_maps_over_rows():
  logits = 4 * normal(0, 5, 2, 300)
  run = jax.vmap(lambda x: adjusted_probs(x, Sampling(top_k=9)), in_axes=1, out_axes=1)
  np.testing.assert_array_equal(
    jax.jit(run)(logits), distributions(logits, Sampling(top_k=9))
  )


@pytest.mark.parametrize("sampling", SAMPLINGS, ids=str)
def test_the_gradient_equals_xla(sampling, monkeypatch):
  logits = jnp.asarray(4 * normal(0, 2, 300))

  def found():
    return jax.grad(lambda x: (adjusted_probs(x, sampling) ** 2).sum())(logits)

  ours = found()
  monkeypatch.setattr(library, "problem", lambda: "not wanted")
  np.testing.assert_allclose(ours, found(), atol=1e-6)
  assert np.abs(ours).max() > 1e-3
