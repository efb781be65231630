"""Training of heads: training tokens, losses and complete runs."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import specdec_t5x
from specdec_t5x import train
from specdec_t5x.network.functional import logits_fn, network_for
from specdec_t5x.network.heads import HeadsConfig
from specdec_t5x.training import heads as training
from specdec_t5x.training import jobs, losses
from specdec_t5x.training.heads import ahead, new_heads
from specdec_t5x.training.objectives import forward
from specdec_t5x.training.optimizers import Optimizer, Schedule
from specdec_t5x.training.trainer import Loop
from tests.training.conftest import NETWORK, drafted, logged, params_of, saved

pytestmark = pytest.mark.slow

FAST = Optimizer(Schedule("constant", 0.01, 5), "adamw")
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


def unrolled(network, params):
  """Returns the features of the batch and the heads' logits."""
  target_params = params_of(TARGET)
  features = forward(TARGET, target_params, batch(), method="features")
  logits = training.drafted_ahead(
    network, params, TARGET, target_params, features, batch()
  )
  return features, list(logits)


def test_d_pace_weights_heads_by_the_gain_of_drafts():
  network = heads("medusa")
  target_params = params_of(TARGET)
  objective = training.HeadDistillation(TARGET, "d_pace", "negative_log_alpha")

  @jax.jit
  def judged(params):
    features, drafts = unrolled(network, params)
    teacher = logits_fn(TARGET, target_params)(features)
    probs = []
    counts = []
    values = []
    for i, logits in enumerate(drafts, 1):
      token = ahead(batch()["decoder_target_tokens"], i)[..., None]
      probs.append(jnp.take_along_axis(jax.nn.softmax(logits), token, -1)[..., 0])
      counts.append(training.has_token(batch(), i))
      values.append(losses.negative_log_alpha(ahead(teacher, i), logits))
    counts = jnp.stack(counts)
    weights = losses.d_pace(jnp.stack(probs), counts)
    expected = jnp.where(counts, weights * jnp.stack(values), 0).sum(axis=0)
    return objective(network, params, batch(), target_params).losses, expected

  outputs, expected = judged(params_of(network, 1))
  np.testing.assert_allclose(outputs, expected, atol=1e-4)


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
    ({"metric_period": 5}, "METRIC_PERIOD must be 0 with MODE = 'heads'"),
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


@pytest.mark.parametrize("kind", ["parallel", "medusa"])
def test_the_configuration_trains_heads_on_files(kind, target, bound, translations):
  bound = bound(
    "heads",
    **translations,
    **{"HEADS": kind, "NUM_HEADS": 3, "HEAD_DECAY": 0.6},
    DISTILL_LOSS="adaptive",
    TARGET_CHECKPOINT_PATH=target,
    **{"tasks.translation_from_files.name": f"of_{kind}"},
  )
  shape = bound.network.config
  assert (shape.kind, shape.count, shape.emb_dim) == (kind, 3, NETWORK.emb_dim)
  assert bound.objective == training.HeadDistillation(TARGET, 0.6, "adaptive")
  assert bound.optimizer == Optimizer(Schedule("cosine", 0.001, 50, 20000), "adamw")
