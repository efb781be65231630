"""Heads: initial outputs and inputs. Configurations read from shapes."""

import jax
import numpy as np
import pytest

from specdec_t5x.checkpoints.checks import flat_shapes
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
  HeadsConfig("blockwise", COUNT, WIDTH, hidden_dim=5),
]


def features(config, h, noise=0.0):
  """Returns the features of new heads with added noise on the parameters."""
  heads = KINDS[config.kind](config)
  params = initial_variables(heads, jax.random.key(0))["params"]
  leaves, tree = jax.tree.flatten(params)
  drawn = [x + noise * normal(*x.shape, seed=i) for i, x in enumerate(leaves)]
  variables = {"params": jax.tree.unflatten(tree, drawn)}
  return np.asarray(heads.apply(variables, h, method="features"))


def normal(*shape, seed=2):
  return jax.random.normal(jax.random.key(seed), shape)


@pytest.mark.parametrize("config", CONFIGS, ids=lambda config: config.kind)
def test_new_heads_are_near_the_target_and_do_not_share_weights(config):
  """Heads have separate weights, unlike a repeated module."""
  h = normal(4, WIDTH)
  found = features(config, h)
  np.testing.assert_allclose(found, np.repeat(h[:, None], COUNT, 1), atol=0.15)
  found = features(config, h, 0.5)
  for i, j in ((0, 1), (1, 2), (0, 2)):
    assert np.abs(found[:, i] - found[:, j]).max() > 0.01


LAYER = {"num_heads": 2, "head_dim": 3, "mlp_dim": 8}
PARALLEL = HeadsConfig("parallel", COUNT, WIDTH, **LAYER)
# The parameters do not show the number of drafted steps; the default is five.
EAGLE = HeadsConfig("eagle", 5, WIDTH, **LAYER)


@pytest.mark.parametrize(
  "config", [*CONFIGS, PARALLEL, EAGLE, *kinds.OLD.values()], ids=repr
)
def test_the_configuration_is_read_from_the_shapes(config):
  def make(key):
    return initial_variables(network_for(config), key)["params"]

  assert network_config(flat_shapes(jax.eval_shape(make, jax.random.key(0)))) == config
