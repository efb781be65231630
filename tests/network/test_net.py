"""Networks as functions project only the tokens with logits that are used."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from specdec_t5x.network.functional import network_for
from specdec_t5x.network.net import caught_up, draft_net, read_last
from tests import networks
from tests.t5x_bridge import tiny

ROWS, VOCAB = 3, 40
CONFIG = dataclasses.replace(tiny.config(1, 16, vocab_size=VOCAB), products="xla")
NETWORK = network_for(CONFIG)
PARAMS = networks.sharp(NETWORK)
SEQUENCES = jnp.array([[0, 5, 6, 7, 2, 0], [0, 9, 8, 0, 0, 0], [0, 3, 4, 4, 9, 9]])
LENGTHS = jnp.array([5, 3, 6])
_, CACHE = networks.start(NETWORK, PARAMS, jnp.array([[5, 6, 1]] * ROWS), 8)


def score(net, sequences):
  cache = caught_up(net.extend, CACHE, sequences, LENGTHS - 2)
  return read_last(net, cache, sequences, LENGTHS)


def test_the_logits_and_the_cache_are_those_of_the_whole_sequence():
  net = draft_net(NETWORK, PARAMS, VOCAB)
  logits, cache = jax.jit(lambda x: score(net, x))(SEQUENCES)
  expected, _, whole = jax.jit(net.extend)(CACHE, SEQUENCES)
  rows = jnp.arange(ROWS)
  np.testing.assert_allclose(logits, expected[rows, LENGTHS - 1], atol=1e-5)
  np.testing.assert_array_equal(cache.index, LENGTHS)
  for row, length in enumerate(LENGTHS):
    np.testing.assert_allclose(
      cache.keys[0][row, :, :length], whole.keys[0][row, :, :length], atol=1e-5
    )


@pytest.mark.parametrize(("projects", "count"), [(True, 1), (False, 2)])
def test_one_token_is_projected(projects, count):
  """Without `Net.logits`, the planted fault, both tokens of the block are projected."""
  net = draft_net(NETWORK, PARAMS, VOCAB)
  if not projects:
    net = dataclasses.replace(net, logits=None)
  program = jax.jit(lambda x: score(net, x)).lower(SEQUENCES).compile().as_text()
  sizes = [size for size in (1, 2) if f"f32[{ROWS},{size},{VOCAB}]" in program]
  assert max(sizes, default=1) == count
