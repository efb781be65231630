"""Truncated distributions with integer weights."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specdec_t5x.contrib.truncation import LARGEST, Truncation
from specdec_t5x.core.distributions import draws_per_token


@functools.partial(jax.jit, static_argnums=0)
def truncated(truncation, probs, uniforms):
  """Returns the truncated distribution, a drawn token, and q of all tokens."""
  distribution = truncation.of(probs)
  token = distribution.draw(uniforms)
  return distribution, token, distribution.dense(probs.shape[-1])


def test_truncation_by_hand():
  probs = jnp.array([0.1, 0.4, 0.06, 0.19, 0.25])
  distribution, _, dense = truncated(Truncation(3), probs, jnp.zeros(1))
  assert distribution.tokens.tolist() == [1, 3, 4]
  kept = np.array([0.4, 0.19, 0.25]) / 0.84
  assert distribution.weights.tolist() == np.round(kept / kept[0] * LARGEST).tolist()
  np.testing.assert_allclose(dense, [0, kept[0], 0, *kept[1:]], atol=1e-5)
  # 0.4 and 0.25 reach 0.7 of the kept 0.84; 0.4 alone does not.
  distribution, *_ = truncated(Truncation(3, top_p=0.7), probs, jnp.zeros(1))
  assert (distribution.weights > 0).tolist() == [True, False, True]


def test_ties_keep_the_first_tokens_and_zeros_fill_up():
  equal, _, _ = truncated(Truncation(2), jnp.full(4, 0.25), jnp.zeros(1))
  assert equal.tokens.tolist() == [0, 1]
  probs = jnp.array([0.0, 0.0, 1.0, 0.0])
  uniforms = jnp.array([1 - 2.0**-24])
  distribution, token, _ = truncated(Truncation(3), probs, uniforms)
  assert distribution.total == LARGEST
  assert token == 2


@pytest.mark.parametrize("bad", [jnp.nan, jnp.inf])
def test_nan_and_infinity_give_zero_weights(bad):
  probs = jnp.array([[0.5, 0.5, 0.0], [bad, bad, bad]])
  distribution, token, dense = truncated(Truncation(2), probs, jnp.zeros((2, 1)))
  assert distribution.total.tolist()[1] == 0
  assert np.isnan(dense[1, token[1]])


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 2**32 - 1), st.sampled_from([3, 9, 40]), st.floats(0.1, 30))
def test_sums_are_exact_in_any_order_and_q_covers_drawn_tokens(seed, size, scale):
  rng = np.random.default_rng(seed)
  logits = scale * rng.normal(size=(8, 50))
  uniforms = rng.integers(0, 2**24, (8, draws_per_token(size))) * np.float32(2**-24)
  probs = jax.nn.softmax(jnp.asarray(logits, jnp.float32))
  distribution, token, dense = truncated(Truncation(size), probs, uniforms)
  weights = np.asarray(distribution.weights)
  assert ((weights >= 0) & (weights <= LARGEST)).all()
  # Float32 sums are exact in any order.
  order = rng.permutation(size)
  sums = np.cumsum(weights[:, order].astype(np.float32), axis=1)
  assert (sums == np.cumsum(weights[:, order], axis=1)).all()
  token = np.asarray(token)
  dense = np.asarray(dense)
  assert (np.take_along_axis(dense, token[:, None], 1) > 0).all()


def rounded_up(peaks, unit, size=250_112):
  """Returns likely tokens, and the rest just above half a unit, which rounds to one."""
  probs = np.full(size, 0.502 * unit)
  probs[:peaks] = (1 - 0.502 * unit * (size - peaks)) / peaks
  return probs


FLAT = {
  "of mT5's": np.full(250_112, 1 / 250_112),
  "sloping": np.linspace(1, 2, 250_112) / 250_112 / 1.5,
}
STEEP = {
  "many units": rounded_up(128, 2.0**-23),
  "few units": rounded_up(1, 2.0**-17),
  "certain": np.eye(1, 250_112)[0],
}


@pytest.mark.parametrize("name", [*FLAT, *STEEP])
def test_large_vocabularies_have_mass_and_exact_sums(name):
  probs = {**FLAT, **STEEP}[name]
  uniforms = jnp.full((1, draws_per_token(probs.size)), 0.5)
  distribution, token, dense = truncated(
    Truncation(0), jnp.asarray(probs, jnp.float32)[None], uniforms
  )
  weights = np.asarray(distribution.weights[0], np.int64)
  assert 1 <= weights.max() <= LARGEST
  assert weights.sum() < 2**24
  assert weights[int(token[0])] > 0
  if name in FLAT:
    # The error is up to half a unit, and the least likely token has 16 units or more.
    assert np.abs(dense[0] / probs - 1).max() < 1 / 32


@pytest.mark.parametrize("top_p", [0.0, 1.5])
def test_a_top_p_out_of_range_is_refused(top_p):
  with pytest.raises(ValueError, match=f"above 0 and at most 1, got {top_p}"):
    Truncation(top_p=top_p)
