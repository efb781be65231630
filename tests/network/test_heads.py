"""Heads: initial outputs and inputs. Configurations read from shapes."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from specdec_t5x.checkpoints.checkpoint import flat_shapes
from specdec_t5x.network.functional import (
  initial_variables,
  network_config,
  network_for,
)
from specdec_t5x.network.heads import KINDS, HeadsConfig
from tests.network import kinds

WIDTH = 6
COUNT = 3
CONFIGS = [
  HeadsConfig("medusa", COUNT, WIDTH, layers=2),
  HeadsConfig("hydra", COUNT, WIDTH, layers=2),
  HeadsConfig("blockwise", COUNT, WIDTH, hidden_dim=5),
]
each_kind = pytest.mark.parametrize("config", CONFIGS, ids=lambda config: config.kind)


def made(config, noise=0.0):
  """Returns heads and the initial parameters with added noise."""
  heads = KINDS[config.kind](config)
  params = initial_variables(heads, jax.random.key(0))["params"]
  leaves, tree = jax.tree.flatten(params)
  drawn = [x + noise * normal(*x.shape, seed=i) for i, x in enumerate(leaves)]
  return heads, jax.tree.unflatten(tree, drawn)


def outputs(heads, params, h, path):
  """Returns the features of the heads."""

  def after(i):
    return heads.apply({"params": params}, h, path[:, : i + 1], method="after")

  return np.stack([after(i) for i in range(COUNT)], axis=1)


def normal(*shape, seed=2):
  return jax.random.normal(jax.random.key(seed), shape)


@each_kind
def test_a_new_head_s_feature_is_near_the_target_s(config):
  h = normal(4, WIDTH)
  found = outputs(*made(config), h, normal(4, COUNT, WIDTH, seed=3))
  np.testing.assert_allclose(found, np.repeat(h[:, None], COUNT, 1), atol=0.15)


@each_kind
def test_heads_do_not_share_weights(config):
  """Heads have separate weights, unlike a repeated module."""
  found = outputs(*made(config, 0.5), normal(4, WIDTH), jnp.zeros((4, COUNT, WIDTH)))
  for i, j in ((0, 1), (1, 2), (0, 2)):
    assert np.abs(found[:, i] - found[:, j]).max() > 0.01


@each_kind
def test_heads_read_the_path_up_to_their_token_or_no_path(config):
  heads, params = made(config, 0.5)
  h = normal(4, WIDTH)
  path = normal(4, COUNT, WIDTH, seed=3)
  before = outputs(heads, params, h, path)
  for at in range(COUNT):
    moved = np.abs(outputs(heads, params, h, path.at[:, at].add(1.0)) - before)
    is_moved = moved.max(axis=(0, 2)) > 1e-4
    reads = np.arange(COUNT) >= at
    np.testing.assert_array_equal(is_moved, reads & heads.reads_path)


@pytest.mark.parametrize("config", [CONFIGS[0], CONFIGS[2]], ids=lambda c: c.kind)
def test_joint_features_equal_separate_features(config):
  heads, params = made(config, 0.5)
  h = normal(4, WIDTH)
  together = heads.apply({"params": params}, h, method="features")
  apart = outputs(heads, params, h, jnp.zeros((4, COUNT, WIDTH)))
  np.testing.assert_allclose(together, apart, rtol=1e-5)


BIAS = {"rank": 2, "vocab_size": 9}
LAYER = {"num_heads": 2, "head_dim": 3, "mlp_dim": 8}
BIASED = [
  HeadsConfig("medusa", COUNT, WIDTH, **BIAS),
  HeadsConfig("blockwise", COUNT, WIDTH, hidden_dim=5, **BIAS),
  HeadsConfig("parallel", COUNT, WIDTH, **LAYER, **BIAS),
]
# The parameters do not show the number of drafted steps; the default is five.
EAGLE = HeadsConfig("eagle", 5, WIDTH, **LAYER)


@pytest.mark.parametrize(
  "config", [*CONFIGS, *BIASED, EAGLE, *kinds.OLD.values()], ids=repr
)
def test_the_configuration_is_read_from_the_shapes(config):
  def make(key):
    return initial_variables(network_for(config), key)["params"]

  assert network_config(flat_shapes(jax.eval_shape(make, jax.random.key(0)))) == config


@pytest.mark.parametrize("config", BIASED, ids=lambda config: config.kind)
def test_the_bias_is_a_product_of_two_matrices_and_begins_as_zero(config):
  network = network_for(config)
  tokens = jnp.array([[3, 8], [0, 3]])
  params = initial_variables(network, jax.random.key(0))["params"]

  def bias():
    return network.apply({"params": params}, tokens, method="bias")

  np.testing.assert_array_equal(bias(), np.zeros((2, 2, 9)))
  params["markov_logits"]["kernel"] = normal(2, 9)
  expected = np.asarray(params["markov_tokens"])[tokens] @ np.asarray(normal(2, 9))
  np.testing.assert_allclose(bias(), expected, rtol=1e-5)


@pytest.mark.parametrize(
  ("knobs", "message"),
  [
    ({"kind": "eagles"}, "kind of heads must be one of .*got 'eagles'"),
    ({"kind": "parallel", "count": 1}, "count must be a whole number of at least 2"),
    ({"count": 0}, "HeadsConfig.count must be a whole number of at least 1, got 0"),
    ({"dtype": "float16"}, "HeadsConfig.dtype must be one of"),
    ({"rank": -1}, "MARKOV_RANK must be a whole number of at least 0"),
    ({"rank": 2}, "the target's if MARKOV_RANK is not 0, got 2 and 0"),
    ({"kind": "hydra", **BIAS}, "previous token is not for 'hydra'"),
  ],
)
def test_bad_shapes_are_refused(knobs, message):
  with pytest.raises(ValueError, match=message):
    HeadsConfig(**{"kind": "medusa", "count": 2, "emb_dim": 8, **knobs})
