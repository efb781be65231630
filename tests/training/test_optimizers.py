"""Learning rates and optimizers."""

import jax.numpy as jnp
import numpy as np
import optax
import pytest

from specdec_t5x.training.optimizers import Optimizer, Schedule, adafactor


def rates(schedule, *steps):
  """The rate in step t, counted from 1."""
  return [float(schedule(step - 1)) for step in steps]


def test_warm_up_is_linear_and_the_decay_an_inverse_square_root():
  schedule = Schedule("inverse_sqrt", peak=0.1, warmup_steps=4)
  np.testing.assert_allclose(
    rates(schedule, 1, 2, 3, 4, 16, 400), [0.025, 0.05, 0.075, 0.1, 0.05, 0.01], 1e-6
  )


def test_cosine_ends_at_its_final_fraction():
  schedule = Schedule(
    "cosine", peak=2.0, warmup_steps=10, decay_steps=110, final_fraction=0.1
  )
  np.testing.assert_allclose(
    rates(schedule, 5, 10, 60, 110, 500), [1.0, 2.0, 1.1, 0.2, 0.2], 1e-6
  )


def test_constant_needs_no_warm_up():
  schedule = Schedule("constant", peak=0.5, warmup_steps=0)
  assert rates(schedule, 1, 2, 1000) == [0.5, 0.5, 0.5]


def test_only_cosine_depends_on_the_last_step():
  assert Schedule(decay_steps=100) == Schedule(decay_steps=200)
  assert Schedule("cosine", decay_steps=1100) != Schedule("cosine", decay_steps=1200)


def test_adafactor_takes_t5s_step():
  """The first step in closed form: beta_1 = 0, so V is the squared gradient."""
  rng = np.random.default_rng(0)
  weights, gradient = rng.normal(size=(2, 130, 128))
  optimizer = adafactor(lambda _: 0.01)
  params = jnp.asarray(weights, jnp.float32)
  state = optimizer.init(params)
  update, _ = optimizer.update(jnp.asarray(gradient, jnp.float32), state, params)
  square = gradient**2
  row, column = square.mean(1, keepdims=True), square.mean(0, keepdims=True)
  direction = gradient / np.sqrt(row * column / square.mean())
  rms = lambda x: np.sqrt(np.mean(x**2))
  direction /= max(1.0, rms(direction))
  np.testing.assert_allclose(update, -0.01 * rms(weights) * direction, 1e-4, 1e-7)


@pytest.mark.parametrize("name", ["adafactor", "adamw"])
def test_both_optimizers_descend(name):
  optimizer = Optimizer(Schedule("constant", 0.1, 0), name).make()
  loss = lambda x: float(jnp.square(x - 1).sum())
  params = jnp.asarray([3.0, -2.0])
  state, before = optimizer.init(params), loss(params)
  for _ in range(100):
    updates, state = optimizer.update(2 * (params - 1), state, params)
    params = optax.apply_updates(params, updates)
  assert loss(params) < 0.01 * before


@pytest.mark.parametrize(
  ("make", "message"),
  [
    (lambda: Schedule("linear"), "Unknown SCHEDULE 'linear'"),
    (lambda: Schedule(peak=0.0), "LEARNING_RATE"),
    (lambda: Schedule(peak=float("nan")), "LEARNING_RATE"),
    (lambda: Schedule(warmup_steps=-1), "WARMUP_STEPS"),
    (lambda: Schedule("cosine", decay_steps=1000), "STEPS above WARMUP_STEPS"),
    (lambda: Optimizer(Schedule(), "sgd"), "Unknown OPTIMIZER 'sgd'"),
    (lambda: Optimizer(Schedule(), weight_decay=0.1), "is for adamw"),
  ],
)
def test_bad_settings_are_refused(make, message):
  with pytest.raises(ValueError, match=message):
    make()
