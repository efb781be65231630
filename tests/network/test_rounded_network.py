"""A network with rounded weights is a different, complete model."""

import dataclasses
import functools

import flax
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from lab.peers import hf_folder
from specdec_t5x import api, console, prepared
from specdec_t5x.drafters.of_target import NAME, Quantized
from specdec_t5x.native import library
from specdec_t5x.network import rounded
from specdec_t5x.network.functional import is_decoder_only, network_for
from tests import networks
from tests.drafters.test_quantized import GAMMA, INPUTS, ROOM, TARGETS, WAYS, model
from tests.t5x_bridge import tiny
from tests.training.conftest import params_of


@functools.cache
def rounded_model(kind):
  """Returns the 8-bit model of a network and parameters."""
  unrounded = model(kind)
  network = network_for(dataclasses.replace(TARGETS[kind], weights="int8"))
  params = prepared.in_weights(network, unrounded.params)
  return api.Model(network, params, lambda: unrounded.params)


decode = functools.partial(networks.decode, inputs=INPUTS, room=ROOM)


def logits(target, tokens):
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
  off = np.abs(logits(small, tokens) - logits(unrounded, tokens))
  assert 0 < off.mean() < 0.2 * np.abs(logits(unrounded, tokens)).mean()


def test_drafts_round_the_checkpoint_s_weights():
  """Drafts round the checkpoint's weights; rounding rounded weights is refused."""
  drafter = WAYS["4"]
  target = rounded_model("t5")
  found = target.derived(drafter.derive(target.network))[NAME]
  expected = drafter.derive(target.network)[NAME](model("t5").params)
  jax.tree.map(np.testing.assert_array_equal, found, expected)
  with pytest.raises(ValueError, match="got rounded parameters"):
    dataclasses.replace(target, restore=None).derived(drafter.derive(target.network))


@pytest.mark.skipif(bool(library.problem()), reason="needs the kernels")
def test_logits_of_a_row_do_not_depend_on_other_rows():
  """A row does not depend on other rows, for any number of rows.

  XLA's attention and norms depend on the number of rows, and rounding would turn the
  differences into steps.
  """
  config = dataclasses.replace(tiny.config(2, 96), weights="int8")
  network = network_for(config)
  params = prepared.in_weights(network, params_of(network))
  draw = np.random.default_rng(0).integers(2, tiny.VOCAB_SIZE, (40, 21))
  apply = jax.jit(functools.partial(network.apply, enable_dropout=False))
  many, alone = (apply({"params": params}, x, x, x) for x in (draw, draw[:1]))
  np.testing.assert_array_equal(many[:1], alone)


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
