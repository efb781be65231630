"""Heads of earlier versions, with weights that no code reads, still draft."""

import jax
import numpy as np
import pytest

import specdec_t5x
from specdec_t5x.checkpoints import networks
from specdec_t5x.checkpoints.checkpoint import Checkpoint, flat_shapes
from specdec_t5x.checkpoints.readers import abstract_state, one_device
from specdec_t5x.network.heads import HeadsConfig
from tests import ways
from tests.t5x_bridge import tiny

WIDTH = tiny.TARGET.emb_dim
COUNT = 3
CONFIGS = {
  "medusa": HeadsConfig("medusa", COUNT, WIDTH),
  "blockwise": HeadsConfig("blockwise", COUNT, WIDTH, hidden_dim=8),
  "parallel": HeadsConfig.of(tiny.TARGET, COUNT),
  # The parameters do not record the number of steps. The default is five.
  "eagle": HeadsConfig.of(tiny.TARGET, 5, kind="eagle"),
}
MACRO = "DRAFT_CHECKPOINT_PATH"


@pytest.fixture(scope="module")
def target(tmp_path_factory):
  """Returns a target's checkpoint and vocabulary."""
  root = tmp_path_factory.mktemp("target")
  return tiny.save_t5x(root, tiny.TARGET, seed=1), tiny.train_vocabulary(root)


@pytest.fixture(params=["t5x", "orbax"])
def both(request, config, tmp_path):
  """Returns paths of the same heads, as saved by an earlier and by this version."""
  params = dict(ways.drawn(config))
  row = np.random.default_rng(5).normal(size=(COUNT, WIDTH + 2)).astype(np.float32)
  old = {**params, "confidence": row}
  return [
    tiny.save(tmp_path / name, config, of_version, format=request.param)
    for name, of_version in (("old", old), ("new", params))
  ]


every_kind = pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS)


@every_kind
def test_unused_weights_of_old_heads_change_no_output(both, config, target):
  checkpoint, vocabulary = target
  whole = specdec_t5x.load_model(checkpoint)
  old, new = map(specdec_t5x.load_model, both)
  assert old.network.config == new.network.config == config
  assert "confidence" not in old.params
  texts = tiny.sentences(3, seed=4)
  settings = {"gamma": 3, "max_length": 6}
  outputs = [
    specdec_t5x.generate(texts, whole, draft, vocabulary, **settings)
    for draft in (old, new)
  ]
  assert outputs[0] == outputs[1]
  assert sum(output.drafted for output in outputs[0]) > 0


@every_kind
def test_a_run_restores_old_heads_without_unused_weights(both, config):
  network = networks.heads(both[0])
  assert network.config == config
  state = abstract_state(network)
  found = [
    Checkpoint.of_network(path, MACRO, flat_shapes(state.params)).restore(
      state, one_device(), "float32"
    )
    for path in both
  ]
  jax.tree.map(np.testing.assert_array_equal, found[0].params, found[1].params)
