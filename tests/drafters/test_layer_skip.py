"""Self-speculation that skips sublayers: acceptance, work saved, and refusals."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from specdec_t5x.core.distributions import Sampling
from specdec_t5x.decoding.decoder import Decoder
from specdec_t5x.drafters.of_target import LayerSkip
from specdec_t5x.network.functional import (
  network_for,
  prompts_of,
  without_fn,
)
from tests import networks
from tests.hash_model import HashModel
from tests.t5x_bridge import tiny, tiny_gpt
from tests.training.conftest import params_of

INPUTS = jnp.array([[5, 6, 7, 1], [9, 3, 1, 0], [4, 4, 8, 1]])
ROOM = 14
GAMMA = 3
TARGETS = {"t5": tiny.TARGET, "gpt": tiny_gpt.TARGET}
SKIPS = {"t5": ("self_0", "cross_1", "mlp_0"), "gpt": ("self_0", "mlp_0")}


@functools.cache
def params(kind):
  return {"target": params_of(network_for(TARGETS[kind]), 1, 2.0)}


def test_drafts_without_skipped_sublayers_are_accepted():
  """The target is decoder-only; tests/test_table.py tests an encoder-decoder."""
  decoder = Decoder(network_for(TARGETS["gpt"]), LayerSkip((), GAMMA))
  info = networks.run(decoder, params("gpt"), INPUTS, ROOM, Sampling(0.8, top_k=5))
  info = info.statistics
  np.testing.assert_array_equal(info.accepted, info.drafted)
  np.testing.assert_allclose(info.acceptance_mass, info.acceptance_positions, rtol=1e-4)


# ---- The network without some sublayers. ----


def cache_of(kind):
  """Returns a cache without output."""
  network = network_for(TARGETS[kind])
  prompts = prompts_of(INPUTS, network)
  return networks.start(network, params(kind)["target"], INPUTS, ROOM, 1, prompts)[1]


def test_skipped_sublayers_are_not_computed():
  network = network_for(dataclasses.replace(tiny.TARGET, products="xla"))
  cache = cache_of("t5")

  def work(*skip):
    extend = without_fn(network, params("t5")["target"])(skip)
    logits = jax.jit(lambda tokens: extend(cache, tokens)[0])
    return logits.lower(INPUTS[:, :1]).cost_analysis()["flops"]

  parts = [work() - work(name) for name in network.sublayers]
  assert min(parts) > 0
  # The norm and the projection to the vocabulary remain.
  logits = 2 * len(INPUTS) * network.config.emb_dim * network.config.vocab_size
  assert logits <= work(*network.sublayers) < 1.5 * logits
  assert work() > 5 * logits


# ---- Settings. ----


def test_sublayers_that_a_network_lacks_are_refused(unchecked):
  with pytest.raises(ValueError, match="the sublayers are none"):
    LayerSkip(("mlp_0",)).check(HashModel(1, 4))


def test_lists_from_gin_become_tuples():
  made = LayerSkip(["mlp_0"], 4)
  assert made == LayerSkip(("mlp_0",), 4)
  assert hash(made) == hash(LayerSkip(("mlp_0",), 4))
