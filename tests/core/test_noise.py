"""Noise of coupled draws has the right distribution, and depends on uniforms alone."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from specdec_t5x.core import noise
from specdec_t5x.core.distributions import LEVELS
from specdec_t5x.decoding.state import unit_uniforms

exponentials = jax.jit(noise.exponentials, static_argnums=1)


def uniforms_of(rows, seed=0):
  return unit_uniforms(jax.random.key(seed), (rows, LEVELS))


def test_equal_uniforms_give_equal_noise_in_any_shape():
  uniforms = uniforms_of(24)
  whole = exponentials(uniforms, 1000)
  for row in (0, 7, 23):
    np.testing.assert_array_equal(exponentials(uniforms[row], 1000), whole[row])
  blocks = exponentials(uniforms.reshape(4, 6, LEVELS), 77)
  np.testing.assert_array_equal(blocks.reshape(24, 77), whole[:, :77])


@pytest.mark.parametrize("word", range(noise.WORDS))
def test_each_uniform_changes_the_noise(word):
  uniforms = jnp.full((1, LEVELS), 0.5)
  other = uniforms.at[0, LEVELS - 1 - word].add(2.0**-20)
  same = exponentials(uniforms, 4096) == exponentials(other, 4096)
  assert same.sum() <= 1


def test_noise_is_exponential_and_independent():
  """Chi-squared tests at level 0.001 cover tokens, token pairs, and place pairs."""
  uniforms = exponentials(uniforms_of(400), 1000)
  cells = np.asarray(16 * jnp.exp(-uniforms)).astype(int)
  neighbours = cells[:, 1:] * 16 + cells[:, :-1]
  far = cells[:, 512:1000] * 16 + cells[:, :488]
  places = cells[1:] * 16 + cells[:-1]
  for found, kinds in ((cells, 16), (neighbours, 256), (far, 256), (places, 256)):
    assert stats.chisquare(np.bincount(found.ravel(), minlength=kinds)).pvalue > 1e-3
  # Places with the closest uniforms are independent, too.
  steps = jnp.full((400, LEVELS), 0.25).at[:, -1].add(jnp.arange(400) * 2.0**-24)
  cells = np.asarray(16 * jnp.exp(-exponentials(steps, 1000))).astype(int)
  counts = np.bincount((cells[1:] * 16 + cells[:-1]).ravel(), minlength=256)
  assert stats.chisquare(counts).pvalue > 1e-3


def test_the_winner_of_the_race_follows_the_distribution():
  """The chi-squared test has level 0.001. A token without mass never wins."""
  probs = jnp.array([0.5, 0.0, 0.25, 0.125, 0.1, 0.02, 0.005, 0.0])
  uniforms = uniforms_of(200_000, seed=1)
  race = jax.jit(lambda uniforms: jnp.argmax(noise.race(probs, uniforms), axis=-1))
  won = race(uniforms)
  counts = np.bincount(won, minlength=8)
  assert counts[[1, 7]].sum() == 0
  mass = np.array(probs)[[0, 2, 3, 4, 5, 6]]
  expected = 200_000 * mass / mass.sum()
  assert stats.chisquare(counts[[0, 2, 3, 4, 5, 6]], expected).pvalue > 1e-3


def unmixed(x):
  """Returns the number with the hash `x`: the inverse of lowbias32."""
  x ^= x >> 16
  x = x * pow(0x846CA68B, -1, 2**32) % 2**32
  x ^= x >> 15 ^ x >> 30
  x = x * pow(0x7FEB352D, -1, 2**32) % 2**32
  return x ^ x >> 16


@pytest.mark.parametrize("words", [0, 1, 2**31, 2**32 - 1])
def test_noise_is_positive_finite_and_fine_near_zero(words):
  """Hashes take extreme values. The last bits count if the first bits are 0."""
  first = unmixed(words)
  second = unmixed(words if words > 1 else 0) ^ words
  numbers = first % 2**24, second % 2**24, first >> 24 | second >> 24 << 8
  uniforms = jnp.array([[*[0] * (LEVELS - noise.WORDS), *numbers]]) * 2.0**-24
  found = float(noise.exponentials(uniforms, 1)[0, 0])
  assert 0 < found < jnp.inf
  if words <= 1:
    assert found == 2.0**-64


def chance_below(x):
  """Returns the probability that a token's noise is at most x, if hashes are uniform.

  Noise rises with the uniform. The last float32 with noise of at most x bounds the
  hashes, which are rounded to nearest.
  """
  near = np.clip(-np.expm1(-x), 2.0**-64, 1 - 2.0**-23).astype(np.float32)
  bits = near.view(np.int32)[..., None] + np.arange(-12, 13, dtype=np.int32)
  uniforms = np.minimum(bits.view(np.float32), np.float32(1 - 2.0**-24))
  is_below = np.asarray(-jnp.log1p(-uniforms), np.float64) <= x[..., None]
  assert is_below[..., 0].all()
  last = np.where(is_below, uniforms, 0).max(axis=-1)
  bound = (last.astype(float) + np.nextafter(last, np.float32(1))) / 2
  return np.where(last >= 1 - 2.0**-24, 1.0, bound)


@pytest.mark.parametrize("p", [1e-12, 1e-9, 1 / 32128, 0.01, 0.5, 0.999])
def test_the_grid_of_noise_values_is_fine_enough(p):
  """A token wins against exponential noise of rate 1 - p with probability p."""
  quantiles = (np.arange(4096) + 0.5) / 4096
  reached = -p * np.log1p(-quantiles) / (1 - p)
  off = (chance_below(reached) + np.expm1(-reached)).mean()
  assert abs(off) < 5e-8 * p
