"""Equal layers share a trace, and several decodes of an input share the encoding."""

import collections
import dataclasses

import chex
import jax
import jax.numpy as jnp
import pytest
from flax.linen.partitioning import axis_rules

from specdec_t5x.network.decoder import DecoderLayer
from specdec_t5x.network.functional import extend_fn, network_for, start_decoding
from specdec_t5x.network.transformer import EncoderLayer
from tests.t5x_bridge import tiny, tiny_gpt
from tests.training.conftest import params_of, shapes_of

INPUTS = jnp.array([[5, 6, 7, 1]])
SLOTS = 8


@pytest.fixture
def traced(monkeypatch):
  """Counts the traces of encoder and decoder layers."""
  counts = collections.Counter()
  for kind in (EncoderLayer, DecoderLayer):

    def counted(self, *args, kind=kind, call=kind.__call__, **kwargs):
      counts[kind] += not self.is_initializing()
      return call(self, *args, **kwargs)

    monkeypatch.setattr(kind, "__call__", counted)
  return counts


def traces(traced, config, *widths):
  """Traces a program that scores blocks of widths; returns the counts of traces."""
  module = network_for(config)
  shapes = shapes_of(module)["params"]
  traced.clear()

  def score(params):
    (cache,) = start_decoding(module, params, INPUTS, SLOTS)
    extend = extend_fn(module, params)
    return [extend(cache, jnp.ones((1, width), jnp.int32))[0] for width in widths]

  jax.make_jaxpr(score)(shapes)
  return traced[EncoderLayer], traced[DecoderLayer]


def of_width(emb_dim):
  """Returns a configuration with several layers and a width that no test shares."""
  layers = {"num_encoder_layers": 3, "num_decoder_layers": 4}
  return dataclasses.replace(tiny.TARGET, emb_dim=emb_dim, **layers)


@pytest.mark.slow
def test_a_stack_is_traced_once_per_block_width(traced):
  assert traces(traced, of_width(20), 2, 2, 3) == (1, 2)


@pytest.mark.slow
def test_traces_depend_on_axis_rules_and_settings(traced):
  config = of_width(24)
  assert traces(traced, config, 2) == (1, 1)
  assert traces(traced, config, 2) == (0, 0)
  with axis_rules((("embed", "model"),)):
    assert traces(traced, config, 2) == (1, 1)
  assert traces(traced, dataclasses.replace(config, products="xla"), 2) == (1, 1)


# ---- An input with several decodes. ----

SEVERAL = jnp.array([[5, 6, 7, 1], [8, 1, 0, 0]])
DECODES = 3


def products(jaxpr):
  """Yields the operand shapes of the products, including inner programs."""
  for equation in jaxpr.eqns:
    if equation.primitive.name == "dot_general":
      yield [x.aval.shape for x in equation.invars]

    def has_program(x):
      return hasattr(x, "eqns") or hasattr(x, "jaxpr")

    for part in jax.tree.leaves(list(equation.params.values()), is_leaf=has_program):
      if has_program(part):
        yield from products(getattr(part, "jaxpr", part))


@pytest.mark.parametrize("config", [tiny.TARGET, tiny_gpt.TARGET], ids=["t5", "gpt"])
def test_several_decodes_share_the_encoding_of_an_input(config):
  module = network_for(config)
  params = params_of(module)
  prompts = None if config is tiny.TARGET else SEVERAL

  def start(params, decodes):
    return start_decoding(module, params, SEVERAL, SLOTS, decodes, prompts)[0]

  once, several = (
    list(products(jax.make_jaxpr(start, static_argnums=1)(params, decodes).jaxpr))
    for decodes in (1, DECODES)
  )
  assert once == several != []
  cache = jax.jit(start, static_argnums=1)(params, DECODES)
  alone = jax.jit(start, static_argnums=1)(params, 1)
  repeated = jax.tree.map(lambda x: jnp.repeat(x, DECODES, axis=0), alone)
  chex.assert_trees_all_equal(cache, repeated)
