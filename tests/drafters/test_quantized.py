"""Targets in few bits, and targets that draft for themselves."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from lab.peers import hf_folder
from specdec_t5x import api, console, prepared
from specdec_t5x.core.distributions import Sampling
from specdec_t5x.core.rules import RULES
from specdec_t5x.decoding.decoder import Decoder
from specdec_t5x.drafters.of_target import NAME, LayerSkip, Quantized
from specdec_t5x.network import rounded
from specdec_t5x.network.functional import network_for
from specdec_t5x.ways import assembled
from tests import networks
from tests.hash_model import HashModel
from tests.t5x_bridge import tiny, tiny_gpt
from tests.training.conftest import params_of

INPUTS = jnp.array([[5, 6, 7, 1], [9, 3, 1, 0], [4, 4, 8, 1]])
ROOM = 14
GAMMA = 3


@functools.cache
def model(config=tiny.TARGET):
  network = network_for(config)
  return api.Model(network, params_of(network, 1, 2.0))


decode = functools.partial(networks.decode, inputs=INPUTS, room=ROOM)


def test_drafts_without_skipped_sublayers_are_accepted():
  """The target is decoder-only; tests/test_table.py tests an encoder-decoder."""
  words = {"sampling": Sampling(0.8, top_k=5), "policy": "fixed"}
  info = decode(model(tiny_gpt.TARGET), None, LayerSkip((), GAMMA), **words).statistics
  np.testing.assert_array_equal(info.accepted, info.drafted)
  np.testing.assert_allclose(info.acceptance_mass, info.acceptance_positions, rtol=1e-4)


# ---- Rounding, and refusals. ----


def test_weights_are_rounded_once_with_a_message(monkeypatch):
  said = []
  monkeypatch.setattr(console, "say", said.append)
  target = dataclasses.replace(model())  # Has derived nothing yet.
  first, again = (
    assembled(target, "quantized", gamma=gamma)[1][NAME] for gamma in (2, 3)
  )
  assert first is again
  assert len(said) == 1
  assert said[0].startswith("Quantized: 0.0 MB beside the target's 0.0 MB")


def test_a_second_name_of_a_drafter_is_refused():
  with pytest.raises(ValueError, match="names a drafter"):
    assembled(model(), "quantized", "copy")


def test_missing_rounded_weights_are_an_error():
  decoder = Decoder(network_for(tiny.TARGET), Quantized(gamma=GAMMA), RULES["token"])
  params = {"target": model().params}
  with pytest.raises(ValueError, match="'quantized' is not among the parameters"):
    networks.run(decoder, params, INPUTS, ROOM)


def test_sublayers_that_a_network_lacks_are_refused(unchecked):
  with pytest.raises(ValueError, match="the sublayers are none"):
    LayerSkip(("mlp_0",)).check(HashModel(1, 4))


# ---- A network with rounded weights is a different, complete model. ----


IN_INT8 = network_for(dataclasses.replace(tiny.TARGET, weights="int8"))


@functools.cache
def rounded_model():
  params = model().params
  return api.Model(IN_INT8, prepared.in_weights(IN_INT8, params), lambda: params)


def test_drafts_round_the_checkpoint_s_weights():
  """Drafts round the checkpoint's weights; rounding rounded weights is refused."""
  drafter = Quantized(4, 8, gamma=GAMMA)
  target = rounded_model()
  found = target.derived(drafter.derive(target.network))[NAME]
  expected = drafter.derive(target.network)[NAME](model().params)
  jax.tree.map(np.testing.assert_array_equal, found, expected)
  with pytest.raises(ValueError, match="got rounded parameters"):
    dataclasses.replace(target, restore=None).derived(drafter.derive(target.network))


def test_parameters_of_a_different_network_are_refused():
  for network, params in [
    (IN_INT8, model().params),
    (model().network, rounded_model().params),
  ]:
    with pytest.raises(ValueError, match="Expected parameters in weights="):
      decode(api.Model(network, params))
  assert Quantized(4, gamma=GAMMA).check(IN_INT8) is None


def test_any_checkpoint_can_be_loaded_with_rounded_weights(tmp_path, monkeypatch):
  lines = []
  monkeypatch.setattr(console, "say", lines.append)
  path = tiny.save(tmp_path / "t", tiny.TARGET, model().params)
  unrounded = api.load_model(path)
  folder = tmp_path / "theirs"
  hf_folder.write(str(folder), unrounded.network.config, unrounded.params)
  found, theirs = (api.load_model(str(x), weights="int8") for x in (path, folder))
  jax.tree.map(np.testing.assert_array_equal, found.params, theirs.params)
  assert found.network.config.weights == theirs.network.config.weights == "int8"
  assert all("The weights are rounded to int8: another" in x for x in lines)
  assert rounded.size(found.params) < 0.6 * rounded.size(unrounded.params)
