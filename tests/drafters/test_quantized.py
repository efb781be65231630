"""The target drafts for itself: with few bits, or without some sublayers."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from specdec_t5x import api, console
from specdec_t5x.core.distributions import GREEDY, Sampling
from specdec_t5x.core.rules import RULES
from specdec_t5x.decoding.decoder import Decoder
from specdec_t5x.decoding.policies import CostAware, Fixed
from specdec_t5x.drafters.of_target import NAME, LayerSkip, Quantized
from specdec_t5x.network.functional import network_for, prompts_of, without_fn
from specdec_t5x.ways import assembled
from tests import networks
from tests.hash_model import HashModel
from tests.network.kinds import T5_1_0
from tests.t5x_bridge import tiny, tiny_gpt
from tests.training.conftest import params_of

INPUTS = jnp.array([[5, 6, 7, 1], [9, 3, 1, 0], [4, 4, 8, 1]])
ROOM = 14
GAMMA = 3
TARGETS = {"t5": tiny.TARGET, "tied": T5_1_0, "gpt": tiny_gpt.TARGET}
WAYS = {
  "8": Quantized(gamma=GAMMA),
  "4": Quantized(4, 8, gamma=GAMMA),
  "4 and less": Quantized(4, 0, ("logits",), ("self_0",), GAMMA),
}


@functools.cache
def model(kind):
  network = network_for(TARGETS[kind])
  return api.Model(network, params_of(network, 1, 2.0))


def run(kind, drafter=None, sampling=GREEDY):
  policy = None if drafter is None else Fixed()
  decode = functools.partial(networks.decode, inputs=INPUTS, room=ROOM)
  return decode(model(kind), None, drafter, policy=policy, sampling=sampling)


# ---- Rounding, and refusals. ----


def test_weights_are_rounded_once_with_a_message(monkeypatch):
  said = []
  monkeypatch.setattr(console, "say", said.append)
  target = dataclasses.replace(model("t5"))  # Has derived nothing yet.
  first, again = (
    assembled(target, "quantized", gamma=gamma)[1][NAME] for gamma in (2, 3)
  )
  assert first is again
  assert len(said) == 1
  assert said[0].startswith("Quantized: 0.0 MB beside the target's 0.0 MB")


def test_a_drafter_may_be_given_by_name():
  decoder, _ = assembled(model("t5"), "quantized")
  assert decoder.drafter == Quantized()
  assert decoder.policy == CostAware(prior_alpha=0.9)
  with pytest.raises(ValueError, match="names a drafter"):
    assembled(model("t5"), "quantized", "copy")


def test_missing_rounded_weights_are_an_error():
  decoder = Decoder(network_for(tiny.TARGET), WAYS["8"], RULES["token"])
  params = {"target": model("t5").params}
  with pytest.raises(ValueError, match="'quantized' is not among the parameters"):
    networks.run(decoder, params, INPUTS, ROOM)


def test_lists_from_gin_are_hashable(unchecked):
  assert hash(Quantized(whole=["logits"], skip=["mlp_0"]))


# ---- The target without some sublayers. ----


def test_drafts_without_skipped_sublayers_are_accepted():
  """The target is decoder-only; tests/test_table.py tests an encoder-decoder."""
  info = run("gpt", LayerSkip((), GAMMA), Sampling(0.8, top_k=5)).statistics
  np.testing.assert_array_equal(info.accepted, info.drafted)
  np.testing.assert_allclose(info.acceptance_mass, info.acceptance_positions, rtol=1e-4)


def cache_of(kind):
  """Returns a cache without output."""
  network = network_for(TARGETS[kind])
  prompts = prompts_of(INPUTS, network)
  return networks.start(network, model(kind).params, INPUTS, ROOM, 1, prompts)[1]


def test_skipped_sublayers_are_not_computed():
  network = network_for(dataclasses.replace(tiny.TARGET, products="xla"))
  cache = cache_of("t5")

  def work(*skip):
    extend = without_fn(network, model("t5").params)(skip)
    logits = jax.jit(lambda tokens: extend(cache, tokens)[0])
    return logits.lower(INPUTS[:, :1]).cost_analysis()["flops"]

  parts = [work() - work(name) for name in network.sublayers]
  assert min(parts) > 0
  # The norm and the projection to the vocabulary remain.
  logits = 2 * len(INPUTS) * network.config.emb_dim * network.config.vocab_size
  assert logits <= work(*network.sublayers) < 1.5 * logits
  assert work() > 5 * logits


def test_sublayers_that_a_network_lacks_are_refused(unchecked):
  with pytest.raises(ValueError, match="the sublayers are none"):
    LayerSkip(("mlp_0",)).check(HashModel(1, 4))


def test_lists_from_gin_become_tuples():
  made = LayerSkip(["mlp_0"], 4)
  assert made == LayerSkip(("mlp_0",), 4)
  assert hash(made) == hash(LayerSkip(("mlp_0",), 4))
