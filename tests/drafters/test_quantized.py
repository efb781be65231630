"""Targets in few bits, and targets that draft for themselves."""

import dataclasses
import functools

import flax
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from lab.peers import hf_folder
from specdec_t5x import api, console, prepared
from specdec_t5x.core.distributions import GREEDY, Sampling
from specdec_t5x.core.rules import RULES
from specdec_t5x.decoding.decoder import Decoder
from specdec_t5x.decoding.policies import Fixed
from specdec_t5x.drafters.of_target import NAME, LayerSkip, Quantized
from specdec_t5x.network import rounded
from specdec_t5x.network.functional import is_decoder_only, network_for
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


def test_a_second_name_of_a_drafter_is_refused():
  with pytest.raises(ValueError, match="names a drafter"):
    assembled(model("t5"), "quantized", "copy")


def test_missing_rounded_weights_are_an_error():
  decoder = Decoder(network_for(tiny.TARGET), Quantized(gamma=GAMMA), RULES["token"])
  params = {"target": model("t5").params}
  with pytest.raises(ValueError, match="'quantized' is not among the parameters"):
    networks.run(decoder, params, INPUTS, ROOM)


# ---- The target without some sublayers. ----


def test_drafts_without_skipped_sublayers_are_accepted():
  """The target is decoder-only; tests/test_table.py tests an encoder-decoder."""
  info = run("gpt", LayerSkip((), GAMMA), Sampling(0.8, top_k=5)).statistics
  np.testing.assert_array_equal(info.accepted, info.drafted)
  np.testing.assert_allclose(info.acceptance_mass, info.acceptance_positions, rtol=1e-4)


def test_sublayers_that_a_network_lacks_are_refused(unchecked):
  with pytest.raises(ValueError, match="the sublayers are none"):
    LayerSkip(("mlp_0",)).check(HashModel(1, 4))


# ---- A network with rounded weights is a different, complete model. ----


@functools.cache
def rounded_model(kind):
  unrounded = model(kind)
  network = network_for(dataclasses.replace(TARGETS[kind], weights="int8"))
  params = prepared.in_weights(network, unrounded.params)
  return api.Model(network, params, lambda: unrounded.params)


decode = functools.partial(networks.decode, inputs=INPUTS, room=ROOM)


def logits_of(target, tokens):
  inputs = [] if is_decoder_only(target.network) else [INPUTS]
  mask = jnp.ones_like(tokens)
  apply = jax.jit(functools.partial(target.network.apply, enable_dropout=False))
  return np.asarray(apply({"params": target.params}, *inputs, tokens, mask))


@pytest.mark.parametrize("kind", TARGETS)
def test_every_matrix_is_rounded_and_logits_stay_close(kind):
  small = rounded_model(kind)
  unrounded = model(kind)
  flat = flax.traverse_util.flatten_dict(small.params)
  left = {path[-1] for path in flat} - {"codes", "scales"}
  assert left <= {"scale", "rel_embedding", "embedding"}
  tokens = jnp.arange(len(INPUTS) * 5).reshape(-1, 5) % 7 + 1
  off = np.abs(logits_of(small, tokens) - logits_of(unrounded, tokens))
  assert 0 < off.mean() < 0.2 * np.abs(logits_of(unrounded, tokens)).mean()


def test_drafts_round_the_checkpoint_s_weights():
  """Drafts round the checkpoint's weights; rounding rounded weights is refused."""
  drafter = Quantized(4, 8, gamma=GAMMA)
  target = rounded_model("t5")
  found = target.derived(drafter.derive(target.network))[NAME]
  expected = drafter.derive(target.network)[NAME](model("t5").params)
  jax.tree.map(np.testing.assert_array_equal, found, expected)
  with pytest.raises(ValueError, match="got rounded parameters"):
    dataclasses.replace(target, restore=None).derived(drafter.derive(target.network))


def test_parameters_of_a_different_network_are_refused():
  small = network_for(dataclasses.replace(TARGETS["t5"], weights="int8"))
  for network, params in [
    (small, model("t5").params),
    (model("t5").network, rounded_model("t5").params),
  ]:
    with pytest.raises(ValueError, match="Expected parameters in weights="):
      decode(api.Model(network, params))
  assert Quantized(4, gamma=GAMMA).check(small) is None


def test_any_checkpoint_can_be_loaded_with_rounded_weights(tmp_path, monkeypatch):
  lines = []
  monkeypatch.setattr(console, "say", lines.append)
  path = tiny.save(tmp_path / "t", tiny.TARGET, model("t5").params)
  unrounded = api.load_model(path)
  folder = tmp_path / "theirs"
  hf_folder.write(str(folder), unrounded.network.config, unrounded.params)
  found, theirs = (api.load_model(str(x), weights="int8") for x in (path, folder))
  jax.tree.map(np.testing.assert_array_equal, found.params, theirs.params)
  assert found.network.config.weights == theirs.network.config.weights == "int8"
  assert all("The weights are rounded to int8: another" in x for x in lines)
  assert rounded.size(found.params) < 0.6 * rounded.size(unrounded.params)
