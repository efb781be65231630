"""Rows that take turns are divided equally among the devices of a known mesh."""

import dataclasses

import jax
import jax.numpy as jnp
import pytest
from flax.linen import partitioning as flax_partitioning

from specdec_t5x.core.distributions import GREEDY
from specdec_t5x.decoding.decoder import Decoder
from specdec_t5x.decoding.state import row_keys
from specdec_t5x.network.transformer import Transformer
from specdec_t5x.t5x_bridge import sharding
from tests import networks
from tests.t5x_bridge import tiny

NETWORK = Transformer(tiny.DRAFT)
INPUTS = jnp.ones((6, 3), jnp.int32)


def decode(slots):
  """Returns the shape of the tokens of six inputs, with a number of rows at once."""
  decoder = dataclasses.replace(Decoder(NETWORK), slots=slots)
  params = {"target": networks.initialize(NETWORK, INPUTS)["params"]}
  settings = {"sampling": GREEDY, "max_length": 4, "eos_id": 1}
  settings |= {"is_wanted": None, "policy_state": None}
  keys = row_keys(jax.random.key(0), len(INPUTS))

  def tokens(params):
    return sharding.decode(decoder, params, INPUTS, keys, **settings).tokens

  return jax.eval_shape(tokens, params).shape


def test_slots_that_are_not_divisible_by_shards_are_refused(monkeypatch):
  mesh = jax.sharding.AbstractMesh((2, 1), ("data", "model"))
  monkeypatch.setattr(jax.sharding, "get_abstract_mesh", lambda: mesh)
  with pytest.raises(ValueError, match=r"BATCH_SIZE must be div.* 'data' axis of 2"):
    decode(5)
  assert decode(0) == decode(6) == (6, 4)


def test_a_mesh_that_jax_does_not_show_is_refused(monkeypatch):
  monkeypatch.setattr(jax, "device_count", lambda: 2)
  assert decode(4) == (6, 4)
  with flax_partitioning.axis_rules([("batch", "data")]):
    with pytest.raises(ValueError, match="needs a partitioner that enters"):
      decode(4)
    assert decode(0) == (6, 4)
