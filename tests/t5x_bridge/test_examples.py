"""Samples depend on SEED, task and the example's index, not on the batch."""

import gin
import jax
import jax.numpy as jnp
import numpy as np
import seqio
import t5x
import tensorflow as tf
from absl import flags
from t5x import infer, models, utils

from specdec_t5x.core.distributions import Sampling
from specdec_t5x.t5x_bridge.examples import (
  EXAMPLE,
  NumberedConverter,
  Shard,
  inputs_of_call,
  is_first,
  number_of,
  rows_at_once,
  shard_of_command,
  task_of_command,
)
from tests import commands
from tests.t5x_bridge import tiny

LENGTHS = {"inputs": 6, "targets": 12}
CONVERTER = NumberedConverter("EncDecFeatureConverter")


def convert(converter, shard=0, shards=1, count=7):
  """Returns the features of a shard of `count` examples, in order."""
  rows = {"inputs": [[i + 3, 1] for i in range(count)], "targets": [[1]] * count}
  dataset = tf.data.Dataset.from_tensor_slices(rows).map(
    lambda row: {name: tf.cast(value, tf.int32) for name, value in row.items()}
  )
  features = converter(dataset.shard(shards, shard), task_feature_lengths=LENGTHS)
  return list(features.as_numpy_iterator())


def places(rows):
  return [row[EXAMPLE][1] for row in rows]


def sample(model, rows):
  batch = {name: np.stack([row[name] for row in rows]) for name in rows[0]}
  return np.asarray(tiny.predict(model, tiny.variables(model)["params"], batch)[0])


def test_shards_use_the_indices_of_the_whole_dataset():
  converter = CONVERTER(pack=False)
  assert places(convert(converter)) == list(range(7))
  for index in range(3):
    shard = converter.of_shard("task", seqio.ShardInfo(index, 3))
    assert places(convert(shard, index, 3)) == list(range(index, 7, 3))
  names = [converter.of_shard(name, seqio.ShardInfo(0, 1)) for name in "ab"]
  assert len({convert(one)[0][EXAMPLE][0] for one in names}) == 2


def define_shard_id():
  flags.DEFINE_integer("shard_id", None, "As T5X's command defines it.")


def test_task_and_shard_are_read_from_the_command_under_upstream_t5x():
  assert shard_of_command() == Shard(0, 1)
  assert task_of_command() == ""
  assert places(convert(CONVERTER(pack=False))) == list(range(7))
  with commands.own_flags(define_shard_id):
    gin.external_configurable(utils.DatasetConfig, module="t5x.utils")
    name = "task_of_a_command"
    source = seqio.FunctionDataSource(lambda split, shuffle_files: None, ("test",))
    seqio.TaskRegistry.add(name, source=source, output_features={})
    gin.parse_config([f"X = '{name}'", "DatasetConfig.mixture_or_task_name = %X"])
    assert task_of_command() == name
    gin.configurable(infer.infer)
    gin.parse_config(["N = 3", "infer.shard_id = 1", "infer.num_shards = %N"])
    flags.FLAGS(["infer"])
    assert shard_of_command() == Shard(1, 3)
    flags.FLAGS(["infer", "--shard_id=2"])
    assert shard_of_command() == Shard(2, 3)
    row = convert(CONVERTER(pack=False))[1]
    assert row[EXAMPLE].tolist() == [number_of(name), 5]


def test_sampling_returns_every_decode_of_an_input(vocabulary):
  rows = convert(CONVERTER(pack=False))[:2]
  several = {"default_decoder_params": models.DecoderParams(num_decodes=3)}
  drawn = sample(tiny.plain(vocabulary, Sampling(1.0), **several), rows)
  assert drawn.shape == (2, 3, LENGTHS["targets"])
  assert len({decode.tobytes() for decode in drawn[0]}) == 3
  assert sample(tiny.plain(vocabulary, **several), rows).shape == (2, 12)


# ---- The number of inputs per call of T5X, and copies that fill a batch. ----


def test_inputs_are_read_ahead(monkeypatch, capsys):
  assert inputs_of_call(16, 8) == 128
  assert inputs_of_call(16, 1) == inputs_of_call(16, 0) == 16
  # Without reading ahead, all outputs of the inputs decode at once.
  assert [rows_at_once(16, ahead) for ahead in (8, 1, 0)] == [16, 16, 0]
  monkeypatch.setattr(jax, "device_count", lambda: 2)
  monkeypatch.setattr(t5x, "PROVIDER", "specdec-t5x-runtime", raising=False)
  assert inputs_of_call(16, 8) == 128
  monkeypatch.delattr(t5x, "PROVIDER")
  assert inputs_of_call(16, 8) == 16
  assert "READ_AHEAD=1" in capsys.readouterr().err


def test_copies_that_fill_a_batch_are_not_decoded():
  examples = jnp.array([[7, 3], [7, 4], [8, 4], [7, 3], [7, 3]])
  assert is_first(examples).tolist() == [True, True, True, False, False]
