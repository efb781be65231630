"""DatasetConfig, get_dataset, RestoreCheckpointConfig, get_infer_fn, gin_utils."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import seqio
import t5x
import tensorflow as tf
from t5x import gin_utils, models, partitioning, train_state, utils

from tests.contract import conftest
from tests.contract.conftest import VOCABULARY, dataset_config, tiny_model
from tests.real_data import ROOT


def batches(config, shard=0, shards=1):
  ds = utils.get_dataset(
    config, shard, shards, seqio.EncDecFeatureConverter, num_epochs=1
  )
  return list(ds.as_numpy_iterator())


def test_get_dataset_makes_the_model_s_features():
  first, *_ = found = batches(dataset_config())
  assert len(found) == 2  # The last three examples do not fill a batch.
  assert first["encoder_input_tokens"].shape == (4, 24)
  assert first["decoder_target_tokens"].shape == (4, 12)
  assert set(first) == {
    "encoder_input_tokens",
    "decoder_target_tokens",
    "decoder_input_tokens",
    "decoder_loss_weights",
  }
  text = VOCABULARY.decode(first["encoder_input_tokens"][1].tolist())
  assert text.startswith("text 1 x")


def test_shards_take_turns():
  tokens = np.concatenate(
    [b["encoder_input_tokens"] for b in batches(dataset_config(batch_size=1))]
  )
  config = dataset_config(batch_size=2)
  for shard in (0, 1):
    rows = [b["encoder_input_tokens"][0] for b in batches(config, shard, 2)]
    np.testing.assert_array_equal(rows, tokens[shard::2])


def test_the_batch_must_be_divisible_by_the_shards():
  with pytest.raises(ValueError, match="3"):
    utils.get_dataset(dataset_config(batch_size=3), 0, 2, seqio.EncDecFeatureConverter)


def test_unknown_tasks_and_modules_are_errors():
  config = dataset_config(mixture_or_task_name="contract_utls")
  with pytest.raises(ValueError, match="contract_utls"):
    utils.get_dataset(config, 0, 1, seqio.EncDecFeatureConverter)
  with pytest.raises(ModuleNotFoundError):
    utils.import_module("no_such_module_anywhere")


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
  assert {f.name for f in dataclasses.fields(config)} == {
    *("path", "mode", "assignment_map", "strict", "fallback_to_scratch", "dtype"),
    *("restore_dataset", "checkpointer_cls", "state_transformation_fns"),
    "checkpoint_manager_cls",
  }


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
  state, _ = utils.create_checkpoint_manager_and_restore(
    initializer, part, config, restored_path, None, use_orbax=True
  )
  assert int(state.step) == 3
  assert {"directory", "train_state", "partitioner", "restore_dtype"} <= set(
    seen["init"]
  )
  assert jnp.dtype(seen["init"]["restore_dtype"]) == jnp.bfloat16
  assert seen["restore"]["path"] == str(path)
  assert seen["restore"]["fallback_state"] is None
  assert not seen["restore"]["state_transformation_fns"]
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
  _, aux = infer_fn(step, keep_aux_as_numpy=True)(
    NUMBERS, STATE, rng=jax.random.PRNGKey(5)
  )
  assert not isinstance(aux["u"][0], float)


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
  assert gin_utils.sum_fn(1, 2) == 3
  assert gin_utils.bool_fn("") is False
  assert gin_utils.string_split_fn("a,b,c", ",", 1) == ["a", "b,c"]
  assert gin_utils.string_split_fn("a,b", ",", index=1) == "b"


def test_the_provider_is_recognized():
  assert not conftest.IS_RUNTIME or "specdec" in t5x.__version__


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
