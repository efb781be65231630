"""Packed batches lose and repeat no example, and packing keeps examples apart."""

import dataclasses

import numpy as np
import pytest

from specdec_t5x.network.transformer import Transformer
from specdec_t5x.training import batches
from tests.training.conftest import NETWORK, assert_apart

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
  """Returns the target tokens of the packed examples in order."""
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
    for name in batches.FEATURES:
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
