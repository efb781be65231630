"""What is made of an input is made once, however many rows decode it."""

import chex
import jax
import jax.numpy as jnp
import pytest

from specdec_t5x.network.functional import (
  initial_variables,
  network_for,
  start_decoding,
)
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


@pytest.mark.parametrize("config", [tiny.TARGET, tiny_gpt.TARGET], ids=["t5", "gpt"])
def test_an_input_is_read_once_for_all_of_its_decodes(config):
  module = network_for(config)
  params = initial_variables(module, jax.random.key(0))["params"]
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
  repeated = jax.tree.map(lambda x: jnp.repeat(x, DECODES, axis=0), alone)
  chex.assert_trees_all_equal(cache, repeated)
