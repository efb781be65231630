"""DatasetConfig, get_dataset, RestoreCheckpointConfig, get_infer_fn, gin_utils."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import seqio
import tensorflow as tf
from t5x import gin_utils, models, partitioning, train_state, utils

from tests.contract import conftest
from tests.contract.conftest import VOCABULARY, dataset_config, tiny_model
from tests.real_data import ROOT


def test_vocabularies_are_compared():
  config = dataset_config()
  assert utils.get_vocabulary(config) == (VOCABULARY, VOCABULARY)
  model = tiny_model()
  utils.verify_matching_vocabs(config, model)
  other = seqio.PassThroughVocabulary(size=10)
  model = models.EncoderDecoderModel(model.module, VOCABULARY, other, None)
  with pytest.raises(ValueError, match="vocab"):
    utils.verify_matching_vocabs(config, model)
  assert utils.round_vocab_size_to_multiple(VOCABULARY) == 384
  assert utils.round_vocab_size_to_multiple(VOCABULARY, 100) == 300


def test_the_restore_config_has_t5x_s_fields():
  config = utils.RestoreCheckpointConfig(path="x", mode="specific", dtype="bfloat16")
  assert config.dtype == "bfloat16"
  fields = {f.name for f in dataclasses.fields(config)}
  assert fields >= {"path", "mode", "dtype", "checkpoint_manager_cls"}


@conftest.runtime_only
@pytest.mark.parametrize(
  "option", [{"assignment_map": [("a", "b")]}, {"fallback_to_scratch": True}]
)
def test_options_of_upstream_alone_are_refused(option):
  with pytest.raises(ValueError, match=f"{next(iter(option))} is not in the contract"):
    utils.RestoreCheckpointConfig(path="x", **option)


@pytest.mark.parametrize(
  "mode", ["specific", pytest.param("latest", marks=conftest.runtime_only)]
)
def test_restoring_uses_the_checkpoint_manager_class(mode, tmp_path):
  seen = {}

  class Manager:
    def __init__(self, **kwargs):
      seen["init"] = kwargs

    def restore(self, **kwargs):
      seen["restore"] = kwargs
      shape = seen["init"]["train_state"]
      params = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), shape.params)
      return shape.replace_params(params).replace_step(jnp.asarray(3))

  model = tiny_model()
  part = partitioning.PjitPartitioner(num_partitions=1)
  initializer = conftest.initializer(model, part)
  path = tmp_path / "checkpoint_3"
  path.mkdir()
  (path / "checkpoint").touch()
  restored_path = str(path if mode == "specific" else tmp_path)
  config = utils.RestoreCheckpointConfig(
    path=restored_path, mode=mode, dtype="bfloat16", checkpoint_manager_cls=Manager
  )
  by_class = {} if conftest.IS_RUNTIME else {"use_orbax": True}
  state, _ = utils.create_checkpoint_manager_and_restore(
    initializer, part, config, restored_path, None, **by_class
  )
  assert int(state.step) == 3
  assert {"directory", "train_state", "partitioner", "restore_dtype"} <= set(
    seen["init"]
  )
  assert jnp.dtype(seen["init"]["restore_dtype"]) == jnp.bfloat16
  assert seen["restore"]["path"] == str(path)
  assert not any(x for name, x in seen["restore"].items() if name != "path")
  info = tmp_path / "model-info.txt"
  shape = initializer.global_train_state_shape
  utils.log_model_info(str(info), shape, part)
  total = sum(x.size for x in jax.tree.leaves(shape.params))
  assert f"Total number of parameters: {total}" in info.read_text()


def infer_fn(step, **kwargs):
  axes = train_state.InferenceState(step=None, params={"w": None})
  part = partitioning.PjitPartitioner(num_partitions=1)
  return utils.get_infer_fn(step, 4, axes, part, **kwargs)


STATE = train_state.InferenceState(step=None, params={"w": np.float32(2)})
NUMBERS = (
  tf.data.Dataset.range(10).map(lambda i: {"x": tf.cast(i, tf.float32)}).enumerate()
)


def test_infer_fn_numbers_results_and_drops_padding():
  def step(params, batch):
    return params["w"] * batch["x"]

  result = sorted(infer_fn(step)(NUMBERS, STATE))
  assert [(int(i), float(y)) for i, y in result] == [(i, 2.0 * i) for i in range(10)]


def test_infer_fn_splits_the_key_once_per_batch():
  def step(params, batch, rng=None):
    return batch["x"], {"u": jax.random.uniform(rng, batch["x"].shape)}

  _, aux = infer_fn(step)(NUMBERS, STATE, rng=jax.random.PRNGKey(5))
  assert isinstance(aux["u"], list)
  expected = []
  rng = jax.random.PRNGKey(5)
  for _ in range(3):
    key, rng = jax.random.split(rng)
    expected += jax.random.uniform(key, (4,)).tolist()
  np.testing.assert_allclose(aux["u"], expected[:10], rtol=1e-6)


@pytest.mark.skipif(not conftest.IS_RUNTIME, reason="upstream passes no state")
def test_each_batch_receives_the_result_of_the_previous_batch():
  def step(params, batch, decoder_params):
    total = decoder_params["decode_state"] + batch["x"]
    return total, {"decode_state": total}

  run = infer_fn(step, first_state=np.zeros)
  # Each dataset starts anew, so a resumed run repeats the results.
  for _ in range(2):
    totals = [float(total) for _, total in sorted(run(NUMBERS, STATE))]
    assert totals == [0, 1, 2, 3, 4, 6, 8, 10, 12, 15]


def test_gin_arguments():
  args = gin_utils.rewrite_gin_args(["x", "--gin.A=1", '--gin.b.c="q"', "--gin_file=f"])
  assert args[0] == "x"
  assert args[1:3] == ["--gin_bindings=A = 1", '--gin_bindings=b.c = "q"']


@conftest.runtime_only
@pytest.mark.parametrize(
  ("file", "include", "suggested"),
  [
    ("configs/spec_endes.gin", "", "configs/spec_ende.gin"),
    ("configs/cope.gin", "", "configs/drafters/copy.gin"),
    ("spec_ende.gin", "", "configs/spec_ende.gin"),
    ("configs/run/infer.gin", "mine.gin", "configs/runs/infer.gin"),
    ("HERE/mime.gin", "mine.gin", "HERE/mine.gin"),
    ("no/such/zzz.gin", "", None),
    ("/zzz.gin", "mine.gin", None),
  ],
)
def test_a_missing_gin_file_is_named_with_the_closest_name(
  tmp_path, file, include, suggested
):
  def here(text):
    return text.replace("HERE", str(tmp_path))

  gin_file = here(file)
  if include:
    gin_file = str(tmp_path / include)
    (tmp_path / include).write_text(f"include '{here(file)}'\n")
  with pytest.raises(ValueError, match="Unable to open file: ") as caught:
    gin_utils.parse_gin_flags([".", str(ROOT)], [gin_file], [])
  message = str(caught.value)
  assert f"Unable to open file: {here(file)}, searched in ." in message
  assert message.startswith(f"--gin_file={gin_file}: ")
  fix = f"Did you mean {here(suggested)}" if suggested else "Check the name"
  assert fix in message


@conftest.runtime_only
def test_a_gin_file_of_a_search_path_is_read_from_any_folder(tmp_path, monkeypatch):
  monkeypatch.chdir(tmp_path)
  monkeypatch.syspath_prepend(str(ROOT))
  (tmp_path / "elsewhere" / "configs").mkdir(parents=True)
  (tmp_path / "elsewhere" / "configs" / "mine.gin").write_text("FOUND = 7\n")
  gin_utils.parse_gin_flags([".", "elsewhere"], ["configs/mine.gin"], [])
  assert gin_utils.macros() == {"FOUND": 7}
