import jax.numpy as jnp
import numpy as np
import pytest

from specdec_t5x.core.distributions import (
  GREEDY,
  Sampling,
  acceptance_mass,
  adjusted_probs,
  argmax,
  draw,
  residual,
  sample,
)

LOGITS = np.log(np.array([0.5, 0.3, 0.15, 0.05], np.float32))


def probs(logits=LOGITS, **sampling):
  return np.asarray(adjusted_probs(jnp.asarray(logits), Sampling(**sampling)))


def test_temperature_one_is_softmax():
  np.testing.assert_allclose(probs(), [0.5, 0.3, 0.15, 0.05], rtol=1e-6)


def test_temperature_divides_logits():
  squared = np.array([0.5, 0.3, 0.15, 0.05]) ** 2
  np.testing.assert_allclose(probs(temperature=0.5), squared / squared.sum(), rtol=1e-6)


@pytest.mark.parametrize("temperature", [0.0, 1e-4])
def test_temperature_zero_is_argmax_whatever_the_truncation(temperature):
  np.testing.assert_array_equal(probs(temperature=temperature, top_k=2), [1, 0, 0, 0])


def test_top_k_keeps_the_k_best_and_ties_with_the_last():
  np.testing.assert_allclose(probs(top_k=2), [0.625, 0.375, 0, 0], rtol=1e-6)
  np.testing.assert_allclose(probs(np.log([0.4, 0.3, 0.3]), top_k=2), [0.4, 0.3, 0.3])


@pytest.mark.parametrize(
  ("top_p", "kept"), [(0.45, 1), (0.55, 2), (0.79, 2), (0.81, 3), (0.96, 4), (1.0, 4)]
)
def test_top_p_keeps_the_fewest_tokens_that_reach_p(top_p, kept):
  assert (probs(top_p=top_p) > 0).sum() == kept


def test_top_p_follows_temperature():
  # At T=1 half of the mass is enough for one token; at T=2 the law is flatter.
  assert (probs(top_p=0.49) > 0).sum() == 1
  assert (probs(top_p=0.49, temperature=2.0) > 0).sum() == 2


def test_impossible_tokens_stay_impossible():
  logits = np.array([0.0, -np.inf, 1.0, -np.inf])
  for sampling in ({}, {"top_k": 3}, {"top_p": 0.9}, {"temperature": 0.3}):
    p = probs(logits, **sampling)
    assert np.isfinite(p).all()
    assert p[1] == p[3] == 0


@pytest.mark.parametrize(
  ("bad", "message"),
  [
    ({"temperature": -1.0}, "temperature"),
    ({"temperature": float("nan")}, "temperature"),
    ({"top_k": -1}, "top_k"),
    ({"top_p": 1.5}, "top_p"),
    ({"top_k": 5, "top_p": 0.9}, "At most one"),
  ],
)
def test_bad_settings_are_refused(bad, message):
  with pytest.raises(ValueError, match=message):
    Sampling(**bad)


def test_residual_is_the_normalised_excess():
  p, q = jnp.array([0.5, 0.3, 0.2]), jnp.array([0.2, 0.2, 0.6])
  np.testing.assert_allclose(residual(p, q), [0.75, 0.25, 0], atol=1e-6)


def test_residual_without_mass_is_p():
  p = jnp.array([0.5, 0.5, 0.0])
  np.testing.assert_array_equal(residual(p, p), p)


def test_acceptance_mass_is_one_minus_half_the_l1_distance():
  p, q = np.random.default_rng(0).dirichlet(np.ones(7), size=2).astype(np.float32)
  expected = 1 - np.abs(p - q).sum() / 2
  beta = acceptance_mass(jnp.asarray(p), jnp.asarray(q))
  np.testing.assert_allclose(beta, expected, rtol=1e-6)


@pytest.mark.parametrize("size", [3, 128, 300])
def test_sample_inverts_the_cumulative_law(size):
  counts = np.random.default_rng(size).multinomial(1000, np.ones(size) / size)
  probs = jnp.asarray(counts / 1000, jnp.float32)
  # The midpoints of 1,000 equal intervals hit token x exactly 1000 p(x) times.
  uniforms = (jnp.arange(1000) + 0.5) / 1000
  drawn = sample(jnp.broadcast_to(probs, (1000, size)), uniforms)
  np.testing.assert_array_equal(np.bincount(drawn, minlength=size), counts)


@pytest.mark.parametrize("size", [4, 200])
def test_sample_never_returns_a_token_without_mass(size):
  one_hot = jnp.zeros(size).at[size - 2].set(1.0)
  extremes = jnp.array([0.0, 0.5, 1 - 2.0**-23, 1 - 2.0**-24])
  drawn = sample(jnp.broadcast_to(one_hot, (4, size)), extremes)
  np.testing.assert_array_equal(drawn, size - 2)


def test_sample_of_many_tiny_masses_stays_in_the_support():
  probs = np.zeros((50, 32128), np.float32)
  probs[:, 1::2] = 1 / 16064
  uniforms = jnp.linspace(0, 1 - 2.0**-24, 50)
  assert (np.asarray(sample(jnp.asarray(probs), uniforms)) % 2 == 1).all()


@pytest.mark.parametrize("size", [1, 3, 128, 300])
@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
def test_argmax_is_numpys_with_the_first_of_equals(size, dtype):
  # Few distinct numbers, so that most rows have several largest ones.
  values = np.random.default_rng(size).integers(-4, 0, (6, 5, size))
  found = argmax(jnp.asarray(values, dtype))
  np.testing.assert_array_equal(found, np.argmax(values, axis=-1))


def test_argmax_points_to_a_nan_as_jax_does():
  values = jnp.zeros(300).at[200].set(jnp.nan)
  assert argmax(values) == jnp.argmax(values) == 200


@pytest.mark.parametrize("sampling", [GREEDY, Sampling(top_k=2), Sampling(2.0)])
def test_draw_returns_a_token_and_the_very_law_it_is_drawn_from(sampling):
  logits = jnp.broadcast_to(LOGITS, (9, 4))
  uniforms = jnp.linspace(0, 0.99, 9)
  tokens, law = draw(logits, sampling, uniforms)
  np.testing.assert_array_equal(law, adjusted_probs(logits, sampling))
  np.testing.assert_array_equal(tokens, sample(law, uniforms))
