"""What is made of an input is made once, however many rows decode it."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from specdec_t5x.network.functional import network_for, start_decoding
from tests import networks
from tests.t5x_bridge import tiny, tiny_gpt

INPUTS = jnp.array([[5, 6, 7, 1], [8, 1, 0, 0]])
SLOTS, DECODES = 6, 3


def products(jaxpr):
  """Yields the operands' shapes of each product, those of inner programs too."""
  for equation in jaxpr.eqns:
    if equation.primitive.name == "dot_general":
      yield [x.aval.shape for x in equation.invars]
    for inner in jax.core.jaxprs_in_params(equation.params):
      yield from products(inner)


def assert_equal(one, other):
  for found, expected in zip(*map(jax.tree.leaves, (one, other)), strict=True):
    np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("config", [tiny.TARGET, tiny_gpt.TARGET], ids=["t5", "gpt"])
def test_an_input_is_read_once_for_all_of_its_decodes(config):
  module = network_for(config)
  tokens = [INPUTS] * (3 if config is tiny.TARGET else 2)
  make = lambda key: module.init(key, *tokens, enable_dropout=False)["params"]
  params = jax.jit(make)(jax.random.key(0))
  prompts = None if config is tiny.TARGET else INPUTS

  def start(params, decodes):
    return start_decoding(module, params, INPUTS, SLOTS, decodes, prompts)[1]

  once, several = (
    list(products(jax.make_jaxpr(start, static_argnums=1)(params, decodes).jaxpr))
    for decodes in (1, DECODES)
  )
  assert once == several != []
  cache = jax.jit(start, static_argnums=1)(params, DECODES)
  alone = jax.jit(start, static_argnums=1)(params, 1)
  assert_equal(cache, jax.tree.map(lambda x: jnp.repeat(x, DECODES, axis=0), alone))


def test_keys_and_values_are_those_of_repeated_inputs():
  module = network_for(tiny.TARGET)
  params = networks.initialize(module, INPUTS)["params"]
  repeated = jnp.repeat(INPUTS, DECODES, axis=0)
  _, found = networks.start(module, params, INPUTS, SLOTS, DECODES)
  _, expected = networks.start(module, params, repeated, SLOTS)
  assert_equal(found, expected)
