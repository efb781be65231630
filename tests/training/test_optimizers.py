"""Learning rates and optimizers."""

import jax.numpy as jnp
import numpy as np
import pytest

from specdec_t5x.training.optimizers import Optimizer, Schedule


@pytest.mark.parametrize(
  ("schedule", "expected"),
  [
    # Linear warmup, then an inverse square root.
    (
      Schedule("inverse_sqrt", peak=0.1, warmup_steps=4),
      {1: 0.025, 2: 0.05, 3: 0.075, 4: 0.1, 16: 0.05, 400: 0.01},
    ),
    # The cosine ends at 0.
    (
      Schedule("cosine", 2.0, warmup_steps=10, decay_steps=110),
      {5: 1.0, 10: 2.0, 60: 1.0, 110: 0.0, 500: 0.0},
    ),
    (Schedule("constant", peak=0.5, warmup_steps=0), {1: 0.5, 2: 0.5, 1000: 0.5}),
  ],
)
def test_rates_by_hand(schedule, expected):
  rates = [schedule(step - 1) for step in expected]  # Step t, counted from 1.
  np.testing.assert_allclose(rates, list(expected.values()), 1e-6)


def test_only_cosine_depends_on_the_last_step():
  assert Schedule(decay_steps=100) == Schedule(decay_steps=200)
  assert Schedule("cosine", decay_steps=1100) != Schedule("cosine", decay_steps=1200)


def test_adafactor_s_first_step_matches_t5_s():
  """The first step in closed form: beta_1 = 0, so V is the squared gradient."""
  rng = np.random.default_rng(0)
  weights, gradient = rng.normal(size=(2, 130, 128))
  optimizer = Optimizer(Schedule("constant", 0.01, 0), "adafactor").make()
  params = jnp.asarray(weights, jnp.float32)
  state = optimizer.init(params)
  update, _ = optimizer.update(jnp.asarray(gradient, jnp.float32), state, params)
  square = gradient**2
  row, column = square.mean(1, keepdims=True), square.mean(0, keepdims=True)
  direction = gradient / np.sqrt(row * column / square.mean())

  def rms(x):
    return np.sqrt(np.mean(x**2))

  direction /= max(1.0, rms(direction))
  np.testing.assert_allclose(update, -0.01 * rms(weights) * direction, 1e-4, 1e-7)
