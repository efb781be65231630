"""Training of heads: training tokens, losses and complete runs."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import specdec_t5x
from specdec_t5x import train
from specdec_t5x.network.functional import network_for
from specdec_t5x.network.heads import HeadsConfig
from specdec_t5x.training import heads as training
from specdec_t5x.training import jobs, losses
from specdec_t5x.training.heads import begun, new_heads
from specdec_t5x.training.objectives import TokenDistillation, forward
from specdec_t5x.training.optimizers import Optimizer, Schedule
from specdec_t5x.training.trainer import Loop
from tests.training.conftest import NETWORK, drafted, logged, params_of, saved

pytestmark = pytest.mark.slow

FAST = Optimizer(Schedule("constant", 0.01, 5), "adam")
TARGET = network_for(NETWORK)
DEEP = network_for(dataclasses.replace(NETWORK, num_decoder_layers=2))
STEPS = 12


def heads(kind="medusa", **knobs):
  """Returns two heads of a kind; parallel and EAGLE heads follow the target's sizes."""
  if kind in ("parallel", "eagle"):
    return network_for(HeadsConfig.of(NETWORK, 2, kind=kind, **knobs))
  return network_for(HeadsConfig(kind, 2, NETWORK.emb_dim, hidden_dim=16, **knobs))


@pytest.fixture(scope="module")
def target(tmp_path_factory):
  return saved(TARGET, tmp_path_factory.mktemp("target"), params_of(TARGET))


def run(data, target, directory, steps=STEPS, network=None, mode="heads", **loop):
  loop = Loop(steps, log_period=0, **{"validation_period": STEPS // 2, **loop})
  network = network or heads()
  folder = str(directory)
  return jobs.train(
    network, data, FAST, loop, folder, mode=mode, target_checkpoint=target
  )


# ---- Losses ----


def batch():
  """Returns two packed rows: examples of 3 and 2 tokens, and 4 tokens with padding."""
  return {
    "encoder_input_tokens": jnp.array([[5, 6, 1, 7, 1], [8, 9, 1, 0, 0]]),
    "encoder_segment_ids": jnp.array([[1, 1, 1, 2, 2], [1, 1, 1, 0, 0]]),
    "decoder_input_tokens": jnp.array([[0, 3, 4, 0, 5], [0, 3, 4, 5, 0]]),
    "decoder_target_tokens": jnp.array([[3, 4, 1, 5, 1], [3, 4, 5, 1, 0]]),
    "decoder_segment_ids": jnp.array([[1, 1, 1, 2, 2], [1, 1, 1, 1, 0]]),
    "decoder_loss_weights": jnp.array([[1, 1, 1, 1, 1], [1, 1, 1, 1, 0]]),
  }


def test_heads_learn_only_from_tokens_of_the_same_example():
  counts = [training.has_token(batch(), i).astype(int).tolist() for i in (1, 2)]
  assert counts[0] == [[1, 1, 0, 1, 0], [1, 1, 1, 0, 0]]
  assert counts[1] == [[1, 0, 0, 0, 0], [1, 1, 0, 0, 0]]


@pytest.mark.parametrize("kind", ["medusa", "blockwise"])
def test_the_loss_is_the_distance_to_the_target_s_distributions_ahead(kind):
  """The expected loss is computed by a loop over positions."""
  network = heads(kind)
  target_params = params_of(TARGET)
  # Heads with zero parameters repeat the target's distribution of the next token.
  params = jax.tree.map(jnp.zeros_like, params_of(network))
  objective = training.HeadDistillation(TARGET, decay=0.5)
  judged = jax.jit(lambda b: objective(network, params, b, target_params))(batch())
  logits = jax.jit(lambda b: forward(TARGET, target_params, b))(batch())
  log_p = np.asarray(jax.nn.log_softmax(logits, axis=-1), float)
  expected, hits = np.zeros((2, 5)), np.zeros((2, 5), bool)
  for i in (1, 2):
    for row, at in zip(*np.nonzero(training.has_token(batch(), i)), strict=True):
      p, q = log_p[row, at + i], log_p[row, at]
      expected[row, at] += 0.5**i * (np.exp(p) * (p - q)).sum()
      if i == 1:
        hits[row, at] = p.argmax() == q.argmax()
  np.testing.assert_allclose(judged.losses, expected, atol=2e-5)
  np.testing.assert_array_equal(judged.hits, hits)


# ---- A draft on the target's encoder ----


@pytest.mark.parametrize(
  ("layers", "taken"), [(1, [3]), (2, [0, 3]), (3, [0, 2, 3]), (4, [0, 1, 2, 3])]
)
def test_a_new_draft_has_layers_of_the_target_s_decoder(tmp_path, layers, taken):
  """A draft with every layer equals the target, also in packed rows."""
  target = network_for(dataclasses.replace(NETWORK, num_decoder_layers=4))
  teacher = params_of(target)
  path = saved(target, tmp_path, teacher)
  network = new_heads(path, "shared_encoder", 4, layers)
  result = begun(network, params_of(network, 1), teacher)
  expected = {**teacher["decoder"]}
  copied = {f"layers_{i}": expected[f"layers_{layer}"] for i, layer in enumerate(taken)}
  others = {name: x for name, x in expected.items() if not name.startswith("layers_")}
  embedder = teacher["token_embedder"]
  expected = {"token_embedder": embedder, "decoder": {**others, **copied}}
  jax.tree.map(np.testing.assert_array_equal, result, expected)
  if layers == 4:
    objective = TokenDistillation(target)
    judged = jax.jit(lambda b: objective(network, result, b, teacher))(batch())
    is_token = batch()["decoder_loss_weights"] > 0
    np.testing.assert_allclose(judged.losses[is_token], 0, atol=1e-6)


# ---- Complete runs ----


@pytest.mark.parametrize("kind", ["eagle", "shared_encoder"])
def test_drafts_learn_and_draft_for_targets(data, copy_files, tmp_path, kind):
  """A draft on the target's encoder saves no encoder, and begins as the last layer."""
  target = saved(DEEP, tmp_path / "target", params_of(DEEP))
  network = heads(kind) if kind == "eagle" else new_heads(target, kind, 4, 1)
  run(data, target, tmp_path, network=network, validation_period=3)
  first, *_, last = logged(tmp_path, "validation_loss")
  assert last < 0.9 * first
  path = str(tmp_path / f"checkpoint_{STEPS}")
  assert "encoder" not in specdec_t5x.load_model(path).params
  outputs = drafted(copy_files, target, path)
  assert sum(output.accepted for output in outputs) > 0


def test_conflicting_settings_are_refused(data, target, tmp_path):
  for settings, message in [
    ({"network": TARGET}, "MODE must be 'heads' for heads.*a Transformer"),
    ({"mode": "supervised", "target": None}, "MODE must be 'heads' for heads"),
    ({"metric_period": 5}, "METRIC_PERIOD must be 0 for a .*without an encoder"),
    (
      {
        "network": new_heads(target, "shared_encoder", 4, 1),
        "mode": "distill_tokens",
      },
      "for a draft on the target's encoder",
    ),
  ]:
    arguments = {"data": data, "target": target, "directory": tmp_path / "no"}
    with pytest.raises(ValueError, match=message):
      run(**arguments | settings)
  with pytest.raises(ValueError, match="whole number from 1 to 1"):
    new_heads(target, "shared_encoder", 4, 5)


def test_several_kinds_are_trained(target, translations, tmp_path):
  """A second run trains nothing."""
  names = {
    **translations,
    **{"HEADS": ("medusa", "shared_encoder"), "NUM_HEADS": 2},
    **{"BATCH_SIZE": 2, "STEPS": 2, "WARMUP_STEPS": 1},
    **{"VALIDATION_PERIOD": 0, "LOG_PERIOD": 0},
    **{"TARGET_CHECKPOINT_PATH": target, "OUTPUT_DIR": str(tmp_path / "drafts")},
    "TASK_FEATURE_LENGTHS": {"inputs": 24, "targets": 12},
    "tasks.translation_from_files.name": "of_several",
  }
  assignments = [f"{name} = {value!r}" for name, value in names.items()]
  written = []
  for _ in range(2):
    train.run("heads", ["configs/train/heads.gin"], assignments)
    paths = [tmp_path / "drafts" / kind / "checkpoint_2" for kind in names["HEADS"]]
    written.append([(path / "checkpoint").stat().st_mtime_ns for path in paths])
  assert written[0] == written[1]


@pytest.mark.parametrize("kind", ["parallel", "medusa", "shared_encoder"])
def test_the_configuration_trains_heads_on_files(kind, target, bound, translations):
  bound = bound(
    "heads",
    **translations,
    **{"HEADS": kind, "NUM_HEADS": 3, "HEAD_DECAY": 0.6},
    DISTILL_LOSS="negative_log_alpha",
    TARGET_CHECKPOINT_PATH=target,
    **{"tasks.translation_from_files.name": f"of_{kind}"},
  )
  shape = bound.network.config
  distance = losses.negative_log_alpha
  if kind == "shared_encoder":
    assert (shape.num_encoder_layers, shape.num_decoder_layers) == (0, 1)
    assert bound.objective == TokenDistillation(TARGET, distance)
  else:
    assert (shape.kind, shape.count, shape.emb_dim) == (kind, 3, NETWORK.emb_dim)
    assert bound.objective == training.HeadDistillation(TARGET, 0.6, distance)
  assert bound.optimizer == Optimizer(Schedule("cosine", 0.001, 50, 20000), "adam")
