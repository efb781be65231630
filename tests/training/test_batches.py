"""Packed batches lose and repeat no example; decoder-only networks learn from them."""

import dataclasses
import itertools
import pathlib

import numpy as np
import pytest
import seqio

from specdec_t5x.data import language_modeling
from specdec_t5x.network.config import GptConfig
from specdec_t5x.network.functional import network_for
from specdec_t5x.network.transformer import Transformer
from specdec_t5x.training import batches, jobs
from specdec_t5x.training.batches import TaskData
from specdec_t5x.training.optimizers import Optimizer, Schedule
from specdec_t5x.training.trainer import Loop
from tests.t5x_bridge import tiny
from tests.training.conftest import NETWORK, assert_apart, logged, params_of, saved

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def few(data):
  """Returns the task with 60 examples, about 8 packed rows per epoch."""
  return dataclasses.replace(data, split="few", batch_size=1)


@pytest.fixture(scope="module")
def straight(few):
  """Returns the rows of two epochs with the position after every row."""
  collected = []
  for row, position in batches.train_batches(few):
    collected.append((row, position))
    if len(examples(row for row, _ in collected)) == 120:
      return collected


@pytest.fixture(scope="module")
def validation(data):
  """Returns the packed batches of the validation split; the last batch is not full."""
  data = dataclasses.replace(data, batch_size=3)
  return list(batches.validation_batches(data, limit=100))


def examples(rows):
  collected = []
  for row in rows:
    tokens, segments = row["decoder_target_tokens"], row["decoder_segment_ids"]
    for segment in range(1, segments.max() + 1):
      collected.append(tuple(tokens[segments == segment].tolist()))
  return collected


def test_training_resumes_from_a_saved_position(few, straight):
  """A batch of two rows has the last row of an epoch and the first row of the next."""
  last = max(i for i, (_, position) in enumerate(straight) if position.epoch == 0)
  by_twos = dataclasses.replace(few, batch_size=2)
  resumed = batches.train_batches(by_twos, straight[last - 3][1])
  for first, (batch, position) in zip(
    range(last - 2, last + 4, 2), resumed, strict=False
  ):
    for name in batch:
      rows = [row[name] for row, _ in straight[first : first + 2]]
      np.testing.assert_array_equal(batch[name], np.concatenate(rows))
    assert position == straight[first + 1][1]
  assert position.epoch == 1


def test_an_epoch_has_every_example_once_in_an_order_by_the_seed(few, straight):
  first, second = (
    examples(row for row, position in straight if position.epoch == epoch)
    for epoch in (0, 1)
  )
  other = examples(batches.epoch_rows(dataclasses.replace(few, seed=4), 0))
  task = batches.get_task(few.task)
  raw = task.get_dataset(None, "few", shuffle=False).as_numpy_iterator()
  expected = sorted(tuple(example["targets"].tolist()) for example in raw)
  assert sorted(first) == sorted(second) == sorted(other) == expected
  assert len({tuple(order) for order in (first, second, other)}) == 3


def test_packing_keeps_examples_apart(validation):
  assert max(batch["decoder_segment_ids"].max() for batch in validation) > 1
  assert assert_apart(Transformer(NETWORK), validation) == 12


def test_validation_is_bounded_and_padded(few, validation):
  many = dataclasses.replace(few, validation_split="few")
  assert len(list(batches.validation_batches(many, limit=3))) == 3
  tokens = validation[-1]["decoder_target_tokens"]
  assert tokens.shape == (3, 64)
  assert tokens[0].any()
  assert not tokens[-1].any()


def test_unknown_tasks_and_splits_are_refused(data):
  with pytest.raises(ValueError, match=r"Unknown task 'nothing'.*training_copy"):
    batches.get_task("nothing")
  with pytest.raises(ValueError, match="no split 'dev'; the splits are"):
    batches.check_splits(data, ("train", "dev"))


# ---- Decoder-only networks on packed complete texts, and distillation. ----

GPT = GptConfig(
  vocab_size=32, emb_dim=32, num_heads=2, head_dim=16, mlp_dim=64, num_layers=1
)
FAST = Optimizer(Schedule("constant", 0.003, 5), "adam")


@pytest.fixture(scope="module")
def files(tmp_path_factory):
  root = tmp_path_factory.mktemp("texts")
  text_files = {}
  for split, count, seed in (("train", 400, 0), ("validation", 12, 1)):
    text_files[split] = str(root / f"{split}.txt")
    (root / f"{split}.txt").write_text("\n".join(tiny.sentences(count, seed)) + "\n")
  return tiny.train_vocabulary(root), text_files


@pytest.fixture(scope="module")
def task_data(files):
  """Returns texts with prompts of one word; training joins prompt and continuation."""
  vocabulary = seqio.SentencePieceVocabulary(files[0], extra_ids=0)
  # The name is unique for the folder.
  name = f"training_{pathlib.Path(files[0]).parent.name}"
  language_modeling.language_modeling_from_files(
    name, files[1], vocabulary, prompt_words=1
  )
  return TaskData(name, {"targets": 48}, batch_size=2, seed=3)


def run(data, directory, steps, network=GPT, loop=None, **kwargs):
  loop = Loop(steps, **{"log_period": 1, "validation_period": 0, **(loop or {})})
  return jobs.train(network_for(network), data, FAST, loop, str(directory), **kwargs)


def test_complete_texts_are_packed_apart_with_loss_on_every_token(files, task_data):
  packed = list(batches.validation_batches(task_data, limit=100))
  rows = []
  for batch, n in itertools.product(packed, range(2)):
    row = {name: values[n] for name, values in batch.items()}
    tokens, segments = row["decoder_target_tokens"], row["decoder_segment_ids"]
    assert np.array_equal(row["decoder_loss_weights"], tokens > 0)
    for segment in range(1, segments.max() + 1):
      (here,) = np.nonzero(segments == segment)
      rows.append(tokens[here].tolist())
      # The start token and then the text, without tokens of the previous text.
      assert row["decoder_input_tokens"][here].tolist() == [0, *rows[-1][:-1]]
  vocabulary = seqio.SentencePieceVocabulary(files[0], extra_ids=0)
  with open(files[1]["validation"], encoding="utf-8") as file:
    texts = [line.strip() for line in file]
  assert sorted(rows) == sorted([*vocabulary.encode(text), 1] for text in texts)
  assert max(batch["decoder_segment_ids"].max() for batch in packed) > 1
  assert assert_apart(network_for(GPT), packed) == 12


def test_a_decoder_only_network_learns_and_is_distilled(task_data, tmp_path):
  run(task_data, tmp_path / "a", 16, loop={"validation_period": 8})
  loss = logged(tmp_path / "a", "loss")
  assert loss[-1] < 0.9 * loss[0]
  first, last = logged(tmp_path / "a", "validation_loss")
  assert last < first
  target = str(tmp_path / "a" / "checkpoint_16")
  run(
    task_data,
    tmp_path / "itself",
    1,
    # The student starts as the target, so the checkpoint has the trained parameters.
    network=dataclasses.replace(GPT, dropout_rate=0.0),
    mode="distill_tokens",
    target_checkpoint=target,
    init_checkpoint=target,
  )
  assert abs(logged(tmp_path / "itself", "loss")[0]) < 1e-6


def test_unsuitable_data_and_settings_are_refused(task_data, data, tmp_path):
  with pytest.raises(
    ValueError, match=r"of a GptTransformer must give .*'targets', got"
  ):
    run(data, tmp_path, 1)
  with pytest.raises(ValueError, match="METRIC_PERIOD must be 0 for a GptTransformer"):
    run(task_data, tmp_path, 1, loop={"metric_period": 1})
  network = network_for(NETWORK)
  target = saved(network, tmp_path / "t5", params_of(network))
  with pytest.raises(ValueError, match="got a Transformer and a GptTransformer"):
    run(task_data, tmp_path, 1, mode="distill_tokens", target_checkpoint=target)
  with pytest.raises(ValueError, match="decoding needs inputs"):
    jobs.decode_task(task_data, target, str(tmp_path / "x.jsonl"))


def test_the_configuration_trains_on_the_user_s_text(files, tmp_path, bound):
  vocabulary, texts = files
  bound = bound(
    "small_lm",
    TRAIN_FILES=texts["train"],
    VALIDATION_FILES=texts["validation"],
    VOCABULARY_PATH=vocabulary,
    VOCAB_SIZE=32,
    OUTPUT_DIR=str(tmp_path / "run"),
    **{"config.GptConfig.emb_dim": 16},
  )
  config = {"emb_dim": 16, "num_layers": 4, "vocab_size": 32, "dropout_rate": 0.1}
  assert {name: getattr(bound.network.config, name) for name in config} == config
  assert bound.data.feature_lengths == {"targets": 256}
