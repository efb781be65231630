"""Fixtures: a tiny copy task over files, and a tiny network for the task."""

import dataclasses
import functools
import itertools
import json
import types

import flax
import gin
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import seqio

import specdec_t5x
from specdec_t5x.data import tasks
from specdec_t5x.network.functional import initial_variables
from specdec_t5x.network.transformer import Transformer
from specdec_t5x.t5x_bridge.restore import T5XParameters
from specdec_t5x.training import jobs, losses, objectives, outputs, state, trainer
from specdec_t5x.training.batches import TaskData
from specdec_t5x.training.optimizers import Optimizer, Schedule
from specdec_t5x.training.trainer import Loop
from tests.t5x_bridge import tiny

NETWORK = dataclasses.replace(tiny.config(1, 32, vocab_size=32), head_dim=16)
FAST = Optimizer(Schedule("inverse_sqrt", 0.01, 2), "adafactor")
STEPS = 24


def lines(directory):
  return [json.loads(x) for x in (directory / "metrics.jsonl").read_text().splitlines()]


def logged(directory, name):
  return [line[name] for line in lines(directory) if name in line]


def assert_same(one, other):
  """Checks that two trees have equal leaves bit for bit."""
  assert jax.tree.structure(one) == jax.tree.structure(other)
  jax.tree.map(np.testing.assert_array_equal, one, other)


def run(data, directory, steps, network=NETWORK, loop=None, **kwargs):
  silent = {"log_period": 0, "validation_period": 0, "checkpoint_period": 2}
  loop = Loop(steps, **silent | (loop or {}))
  return jobs.train(Transformer(network), data, FAST, loop, str(directory), **kwargs)


def shapes_of(network):
  return jax.eval_shape(lambda key: initial_variables(network, key), jax.random.key(0))


@functools.cache
def params_of(network, seed=0, factor=1.0):
  """Draws random parameters times a factor, cached and without compiled programs."""
  normal = np.random.default_rng(seed).normal

  def draw(path, x):
    inputs = 1 if path[-1].key == "embedding" else x.shape[0]
    drawn = np.ones(x.shape) if x.ndim == 1 else normal(size=x.shape) / inputs**0.5
    return jnp.asarray(factor * drawn, x.dtype)

  shapes = flax.core.unfreeze(shapes_of(network)["params"])
  with jax.ensure_compile_time_eval():  # A traced caller gets arrays as well.
    return jax.tree_util.tree_map_with_path(draw, shapes)


def saved(network, directory, params=None):
  params = params or state.initial_params(network, 0)
  T5XParameters(network, str(directory)).save(1, params)
  return str(directory / "checkpoint_1")


def dying(monkeypatch, after):
  """Kills a decode of a task once, with `after` inputs kept; returns decoded inputs."""
  decode = outputs.Decoding.outputs
  decoded = []

  def outputs_of(self, examples, done=()):
    for numbers, tokens in decode(self, examples, done):
      is_killed = len(decoded) < after <= len(decoded) + len(numbers)
      decoded.extend(numbers)
      yield numbers, tokens
      if is_killed:
        raise KeyboardInterrupt

  monkeypatch.setattr(outputs.Decoding, "outputs", outputs_of)
  return decoded


def drafted(copy_files, target, draft, **settings):
  """Returns the outputs for three sentences of a target and a draft checkpoint."""
  models = [specdec_t5x.load_model(str(path)) for path in (target, draft)]
  path = copy_files[0].sentencepiece_model_file
  settings = {"max_length": 12, "batch_size": 3, "policy": "fixed", **settings}
  return specdec_t5x.generate(tiny.sentences(3, seed=9), *models, path, **settings)


def assert_apart(network, packed, rtol=2e-4):
  """Checks that a packed token has the loss that the example has alone."""
  params = params_of(network)
  count = 0

  @jax.jit
  def per_token(batch):
    logits = objectives.forward(network, params, batch)
    return losses.cross_entropy(logits, batch["decoder_target_tokens"])

  for batch in packed:
    together = np.asarray(per_token(batch))
    segments = batch["decoder_segment_ids"]
    for row, segment in itertools.product(range(len(segments)), range(1, 20)):
      single = {name: np.zeros_like(values[:1]) for name, values in batch.items()}
      for name, values in batch.items():
        here = batch[f"{name.split('_')[0]}_segment_ids"][row] == segment
        part = values[row, here]
        single[name][0, : part.size] = np.sign(part) if "segment" in name else part
      here = segments[row] == segment
      if here.any():
        alone = np.asarray(per_token(single))[0, : here.sum()]
        np.testing.assert_allclose(together[row, here], alone, rtol)
        count += 1
  return count


@pytest.fixture
def bound(monkeypatch):
  """Returns a function from configurations to a trainer; nothing is trained."""
  trained = []
  monkeypatch.setattr(jobs, "initial_params", params_of)

  def keep(self, *_):
    return trained.append(self) or types.SimpleNamespace(step=0)

  monkeypatch.setattr(trainer.Trainer, "run", keep)

  def trainer_of(*configs, **bindings):
    assignments = [f"{name} = {value!r}" for name, value in bindings.items()]
    files = [f"configs/train/{config}.gin" for config in configs]
    gin.clear_config()
    gin.parse_config_files_and_bindings(files, assignments)
    is_heads = "heads" in configs
    gin.get_configurable(jobs.train_heads if is_heads else jobs.train)()
    return trained[-1]

  return trainer_of


@pytest.fixture
def translations(tmp_path, copy_files):
  """Returns bindings of a user's files."""
  for language in ("en", "de"):
    (tmp_path / language).write_text("\n".join(tiny.sentences(30)) + "\n")
  files = (str(tmp_path / "en"), str(tmp_path / "de"))
  return {
    "TRAIN_FILES": files,
    "VALIDATION_FILES": files,
    "VOCABULARY_PATH": copy_files[0].sentencepiece_model_file,
    "OUTPUT_DIR": str(tmp_path / "run"),
  }


@pytest.fixture(scope="session")
def copy_files(tmp_path_factory):
  """Returns the vocabulary and a JSONL file per split; targets repeat inputs."""
  root = tmp_path_factory.mktemp("copy")
  files = {}
  # Enough examples for an epoch per test: an epoch builds the dataset in about a
  # second.
  for split, count, seed in (("train", 1500, 0), ("few", 60, 2), ("validation", 12, 1)):
    lines = [json.dumps({"x": s, "y": s}) for s in tiny.sentences(count, seed)]
    files[split] = str(root / f"{split}.jsonl")
    (root / f"{split}.jsonl").write_text("\n".join(lines) + "\n")
  vocabulary = seqio.SentencePieceVocabulary(tiny.train_vocabulary(root), extra_ids=0)
  return vocabulary, files


@pytest.fixture(scope="session")
def copy_task(copy_files):
  vocabulary, files = copy_files
  return tasks.from_records("training_copy", files, "x", "y", "", "bleu", vocabulary)


@pytest.fixture(scope="session")
def data(copy_task):
  return TaskData(copy_task, {"inputs": 64, "targets": 64}, batch_size=2, seed=3)


@pytest.fixture(scope="session")
def learned(data, tmp_path_factory):
  """Returns the folder of a run of the copy task with every measurement."""
  directory = tmp_path_factory.mktemp("learned")
  half = STEPS // 2
  loop = {"log_period": 4, "validation_period": half, "checkpoint_period": 0}
  loop |= {"metric_period": STEPS, "metric_examples": 6}
  run(data, directory, STEPS, loop=loop)
  return directory


@pytest.fixture(scope="session")
def checkpoint(learned):
  """Returns the checkpoint of the run of the copy task."""
  return str(learned / f"checkpoint_{STEPS}")
