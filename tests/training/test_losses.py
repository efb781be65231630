"""The losses against NumPy in float64, and identities between losses."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from specdec_t5x.training import losses

RNG = np.random.default_rng(0)
TARGET_LOGITS, DRAFT_LOGITS = 2 * RNG.normal(size=(2, 3, 5, 7))
TOKENS = RNG.integers(0, 7, (3, 5))


def distribution(logits):
  exp = np.exp(logits - logits.max(-1, keepdims=True))
  return exp / exp.sum(-1, keepdims=True)


P, Q = distribution(TARGET_LOGITS), distribution(DRAFT_LOGITS)
EXPECTED = {
  "forward_kl": (P * np.log(P / Q)).sum(-1),
  "reverse_kl": (Q * np.log(Q / P)).sum(-1),
  "total_variation": 1 - np.minimum(P, Q).sum(-1),
  "negative_log_alpha": -np.log(np.minimum(P, Q).sum(-1)),
}


@jax.jit
def judged(draft):
  """Returns losses with gradients by target logits and draft logits."""
  target = jnp.asarray(TARGET_LOGITS)
  results = {}
  for name in EXPECTED:
    loss = losses.get_distillation_loss(name)

    def total(p, q, loss=loss):
      return loss(p, q).sum()

    results[name] = loss(target, draft), *jax.grad(total, argnums=(0, 1))(target, draft)
  return results


def test_distillation_losses_match_the_formulas_without_target_gradients():
  assert EXPECTED.keys() == losses.DISTILLATION_LOSSES.keys()
  for name, (values, target_gradient, _) in judged(DRAFT_LOGITS).items():
    np.testing.assert_allclose(values, EXPECTED[name], atol=1e-5)
    assert values.shape == (3, 5)
    assert (values > 0).all()
    assert not np.any(target_gradient)


def test_distillation_losses_and_the_gradients_of_kl_vanish_at_equality():
  """A constant added to the logits does not change a distribution."""
  results = judged(TARGET_LOGITS + 3.0)
  for values, _, _ in results.values():
    np.testing.assert_allclose(values.sum(), 0, atol=1e-5)
  # The remaining losses have a kink at equality: rounding decides the subgradients'
  # signs.
  for name in ("forward_kl", "reverse_kl"):
    np.testing.assert_allclose(results[name][-1], 0, atol=1e-5)


def test_the_gradient_of_minus_log_alpha_does_not_vanish_at_small_alpha():
  """The gradient of -log(alpha) is the gradient of total variation over alpha.

  The gradient is thus large even if alpha is so small that total variation's vanishes.
  """
  target, draft = jnp.array([0.0, 30.0]), jnp.array([30.0, 0.0])

  def gradient(loss):
    return jax.grad(lambda q: loss(target, q))(draft)

  assert np.abs(gradient(losses.total_variation)).max() < 1e-12
  np.testing.assert_allclose(gradient(losses.negative_log_alpha)[1], -0.5, atol=1e-4)


def test_a_token_without_mass_gives_no_nan():
  target, draft = jnp.asarray([0.0, -jnp.inf, 1.0]), jnp.asarray([0.0, 2.0, 1.0])
  p, q = distribution(np.asarray(target)), distribution(np.asarray(draft))
  expected = sum(p[x] * np.log(p[x] / q[x]) for x in (0, 2))
  np.testing.assert_allclose(losses.forward_kl(target, draft), expected, atol=1e-5)
  assert np.isinf(losses.reverse_kl(target, draft))


@pytest.mark.parametrize("z", [0.0, 1e-2])
def test_cross_entropy_has_a_z_loss(z):
  log_total = np.log(np.exp(DRAFT_LOGITS).sum(-1))
  log_q = np.take_along_axis(np.log(Q), TOKENS[..., None], -1)[..., 0]
  values = losses.cross_entropy(jnp.asarray(DRAFT_LOGITS), jnp.asarray(TOKENS), z)
  np.testing.assert_allclose(values, z * log_total**2 - log_q, atol=1e-5)


def test_the_weighted_mean_ignores_values_without_weight():
  values = jnp.asarray([1.0, jnp.inf, 4.0])
  assert losses.weighted_mean(values, jnp.asarray([1, 0, 2])) == 3.0
  assert losses.weighted_mean(values, jnp.zeros(3)) == 0.0
