"""A draft on the target's encoder: what it begins as, learns and is refused."""

import dataclasses
import json
import pathlib

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from specdec_t5x.data import reading
from specdec_t5x.network.functional import network_for
from specdec_t5x.training import batches, jobs
from specdec_t5x.training.heads import begun
from specdec_t5x.training.new_heads import new_heads
from specdec_t5x.training.objectives import TokenDistillation
from tests.training.conftest import NETWORK, params_of, saved
from tests.training.test_heads import batch

DEEP, TARGET = (
  network_for(dataclasses.replace(NETWORK, num_decoder_layers=layers))
  for layers in (4, 2)
)


@pytest.fixture(scope="module")
def target(tmp_path_factory):
  """The path of a target's checkpoint."""
  return saved(TARGET, tmp_path_factory.mktemp("target"), params_of(TARGET))


def on_encoder(target, layers=1):
  return new_heads(target, "shared_encoder", 4, layers)


@pytest.mark.parametrize(
  ("layers", "taken"), [(1, [3]), (2, [0, 3]), (3, [0, 2, 3]), (4, [0, 1, 2, 3])]
)
def test_it_begins_as_layers_of_the_target_s_decoder(tmp_path, layers, taken):
  whole = params_of(DEEP)
  network = on_encoder(saved(DEEP, tmp_path, whole), layers)
  found = begun(network, params_of(network, 1), whole)
  expected = {**whole["decoder"]}
  own = {f"layers_{i}": expected[f"layers_{layer}"] for i, layer in enumerate(taken)}
  rest = {name: x for name, x in expected.items() if not name.startswith("layers_")}
  expected = {"token_embedder": whole["token_embedder"], "decoder": {**rest, **own}}
  jax.tree.map(np.testing.assert_array_equal, found, expected)


def test_whole_it_is_the_target_and_has_nothing_to_learn(target):
  """On packed rows: so it reads the features of its own example."""
  network, whole = on_encoder(target, 2), params_of(TARGET)
  params = begun(network, params_of(network, 1), whole)
  judged = jax.jit(lambda b: TokenDistillation(TARGET)(network, params, b, whole))
  found = jnp.where(batch()["decoder_loss_weights"] > 0, judged(batch()).losses, 0)
  np.testing.assert_allclose(found, 0, atol=1e-6)


def test_the_configuration_trains_one_on_what_the_target_writes(
  target, bound, translations, monkeypatch
):
  decoded = []

  def write(data, checkpoint, path, split, limit):
    decoded.append((data.task, checkpoint, split, limit))
    record = {"inputs": "translate a", "targets": f"written for {split}"}
    pathlib.Path(path).parent.mkdir(exist_ok=True)
    pathlib.Path(path).write_text(json.dumps(record) + "\n")

  monkeypatch.setattr(jobs, "decode_task", write)
  given = {
    **translations,
    **{"HEADS": "shared_encoder", "HEAD_LAYERS": 2, "WRITTEN": 7},
    **{"TARGET_CHECKPOINT_PATH": target, "DISTILL_LOSS": "negative_log_alpha"},
  }
  given["tasks.translation_from_files.name"] = "texts"
  for _ in range(2):  # What is written is not written again.
    found = bound("heads", "written", **given)
  shape = found.network.config
  assert (shape.num_encoder_layers, shape.num_decoder_layers) == (0, 2)
  assert found.objective == TokenDistillation(TARGET, "negative_log_alpha")
  assert decoded == [("texts", target, x, 7) for x in ("train", "validation")]
  task = batches.get_task(found.data.task)
  (example,) = reading.rows(task.get_dataset(None, "validation", shuffle=False))
  assert example["targets_pretokenized"] == b"written for validation"
