"""Truncated distributions in whole numbers: by hand, and what they promise."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specdec_t5x.core.distributions import draws_per_token
from specdec_t5x.core.sparse import LARGEST, SparseProbs, Truncation, probs_bits


def test_by_hand():
  probs = jnp.array([0.1, 0.4, 0.06, 0.19, 0.25])
  distribution = Truncation(3).of(probs)
  assert distribution.tokens.tolist() == [1, 3, 4]
  kept = np.array([0.4, 0.19, 0.25]) / 0.84
  assert distribution.weights.tolist() == np.round(kept / kept[0] * LARGEST).tolist()
  np.testing.assert_allclose(
    distribution.dense(5), [0, kept[0], 0, *kept[1:]], atol=1e-5
  )
  # 0.4 and 0.25 reach 0.7 of the kept 0.84; 0.4 alone does not.
  distribution = Truncation(3, top_p=0.7).of(probs)
  assert (distribution.weights > 0).tolist() == [True, False, True]


def test_of_equal_tokens_the_first_are_kept_and_zeros_fill_up():
  assert Truncation(2).of(jnp.full(4, 0.25)).tokens.tolist() == [0, 1]
  distribution = Truncation(3).of(jnp.array([0.0, 0.0, 1.0, 0.0]))
  assert distribution.total == LARGEST
  assert distribution.draw(jnp.array([1 - 2.0**-24])) == 2


@pytest.mark.parametrize("bad", [jnp.nan, jnp.inf])
def test_what_is_no_distribution_has_no_weights(bad):
  distribution = Truncation(2).of(jnp.array([[0.5, 0.5, 0.0], [bad, bad, bad]]))
  assert distribution.total.tolist()[1] == 0
  token = distribution.draw(jnp.zeros((2, 1)))
  assert np.isnan(distribution.dense(3)[1, token[1]])


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 2**32 - 1), st.sampled_from([3, 9, 40]), st.floats(0.1, 30))
def test_draws_depend_on_no_order_of_sums_and_q_is_what_is_drawn_from(
  seed, size, scale
):
  rng = np.random.default_rng(seed)
  probs = jax.nn.softmax(jnp.asarray(scale * rng.normal(size=(8, 50)), jnp.float32))
  distribution = Truncation(size).of(probs)
  weights = np.asarray(distribution.weights)
  assert ((weights >= 0) & (weights <= LARGEST)).all()
  # Exact in float32, summed in any order.
  order = rng.permutation(size)
  sums = np.cumsum(weights[:, order].astype(np.float32), axis=1)
  assert (sums == np.cumsum(weights[:, order], axis=1)).all()
  uniforms = rng.integers(0, 2**24, (8, draws_per_token(size))) * np.float32(2**-24)
  token = np.asarray(distribution.draw(jnp.asarray(uniforms)))
  dense = np.asarray(distribution.dense(50))
  assert (np.take_along_axis(dense, token[:, None], 1) > 0).all()


def rounded_up(peaks, unit, size=250_112):
  """Likely tokens, and all others at just above half a unit, which rounds to one."""
  probs = np.full(size, 0.502 * unit)
  probs[:peaks] = (1 - 0.502 * unit * (size - peaks)) / peaks
  return probs


FLAT = {
  "of 140,000": np.full(140_000, 1 / 140_000),
  "of mT5's": np.full(250_112, 1 / 250_112),
  "sloping": np.linspace(1, 2, 250_112) / 250_112 / 1.5,
}
STEEP = {
  "many units": rounded_up(128, 2.0**-23),
  "few units": rounded_up(1, 2.0**-17),
  "certain": np.eye(1, 250_112)[0],
}


@pytest.mark.parametrize("name", [*FLAT, *STEEP])
def test_of_large_vocabularies_something_has_mass_and_sums_are_exact(name):
  probs = {**FLAT, **STEEP}[name]
  distribution = Truncation(0).of(jnp.asarray(probs, jnp.float32)[None])
  weights = np.asarray(distribution.weights[0], np.int64)
  assert 1 <= weights.max() <= LARGEST
  assert weights.sum() < 2**24
  token = distribution.draw(jnp.full((1, draws_per_token(probs.size)), 0.5))
  assert weights[int(token[0])] > 0
  if name in FLAT:
    # Each to half a unit, of which the least likely token has 16 or more.
    assert np.abs(distribution.dense(probs.size)[0] / probs - 1).max() < 1 / 32


def test_bits_of_a_token_and_its_distribution():
  assert probs_bits(32, 32128) == 32 * (16 + 15) + 15 == 1007
  assert probs_bits(32128, 32128) == 16 * 32128 + 15
  assert probs_bits(32, 8064) == 32 * (16 + 13) + 13


@pytest.mark.parametrize("top_p", [0.0, 1.5])
def test_a_top_p_out_of_range_is_refused(top_p):
  with pytest.raises(ValueError, match=f"above 0 and at most 1, got {top_p}"):
    Truncation(top_p=top_p)


def test_a_distribution_of_one_token_is_certain():
  distribution = SparseProbs(jnp.array([7]), jnp.array([3]))
  assert distribution.draw(jnp.array([0.9])) == 7
