"""Packed batches: nothing is lost or repeated, and packing keeps examples apart."""

import dataclasses
import itertools

import jax
import numpy as np
import pytest
import seqio

from specdec_t5x.network.transformer import Transformer
from specdec_t5x.training import batches
from tests.training.conftest import NETWORK, losses_of


@pytest.fixture
def few(data):
  """The task with about 8 packed rows an epoch."""
  return dataclasses.replace(data, split="few")


def take(data, count, start=batches.START):
  return list(itertools.islice(batches.train_batches(data, start), count))


def examples(rows):
  """The target tokens of each packed example, in order."""
  found = []
  for row in rows:
    tokens, segments = row["decoder_target_tokens"], row["decoder_segment_ids"]
    for segment in range(1, segments.max() + 1):
      found.append(tuple(tokens[segments == segment].tolist()))
  return found


def same(one, other):
  return all(np.array_equal(one[name], other[name]) for name in batches.FEATURES)


def test_a_saved_position_goes_on_where_it_was(few):
  straight = take(few, 10)
  assert straight[-1][1].epoch >= 1  # The test crosses the end of an epoch.
  for stop in (2, 7):
    resumed = take(few, 10 - stop, straight[stop - 1][1])
    assert all(same(a[0], b[0]) for a, b in zip(straight[stop:], resumed, strict=True))
    assert [p for _, p in straight[stop:]] == [p for _, p in resumed]


def test_an_epoch_holds_every_example_once(few):
  first, second = (examples(batches._rows(few, epoch, 0)) for epoch in (0, 1))
  task = batches.get_task(few.task)
  raw = task.get_dataset(None, "few", shuffle=False).as_numpy_iterator()
  expected = sorted(tuple(example["targets"].tolist()) for example in raw)
  assert sorted(first) == sorted(second) == expected
  assert first != second


def test_the_seed_fixes_the_order(few):
  other = dataclasses.replace(few, seed=4)
  assert same(take(few, 1)[0][0], take(few, 1)[0][0])
  assert not same(take(few, 1)[0][0], take(other, 1)[0][0])


def test_packing_keeps_examples_apart(data):
  """The summed loss of packed rows is that of the examples one by one."""
  per_token = losses_of(Transformer(NETWORK))
  task = batches.get_task(data.task)
  single = seqio.EncDecFeatureConverter(pack=False)(
    task.get_dataset(data.feature_lengths, "validation", shuffle=False),
    data.feature_lengths,
  )
  rows = list(single.as_numpy_iterator())
  alone = {name: np.stack([row[name] for row in rows]) for name in rows[0]}
  packed = list(batches.validation_batches(data, limit=100))
  assert sum(b["decoder_segment_ids"].max(1).sum() for b in packed) == len(rows) == 12
  total = sum(float(per_token(b).sum()) for b in packed)
  np.testing.assert_allclose(total, float(per_token(alone).sum()), rtol=1e-5)
  # Token for token too: packing concatenates the examples in order.
  flat = lambda b: np.asarray(per_token(b))[b["decoder_loss_weights"] > 0]
  joined = np.concatenate([flat(b) for b in packed])
  np.testing.assert_allclose(np.sort(joined), np.sort(flat(alone)), rtol=2e-4)


def test_validation_is_bounded_and_padded(data):
  whole = list(batches.validation_batches(data, limit=100))
  assert len(list(batches.validation_batches(data, limit=1))) == 1
  assert {jax.tree.map(np.shape, b)["encoder_input_tokens"] for b in whole} == {(2, 64)}


@pytest.mark.parametrize(
  ("changes", "message"),
  [
    ({"batch_size": 0}, "BATCH_SIZE must be at least 1, got 0"),
    ({"feature_lengths": {"inputs": 8}}, "TASK_FEATURE_LENGTHS"),
    ({"seed": -1}, "SEED"),
  ],
)
def test_bad_settings_are_refused(data, changes, message):
  with pytest.raises(ValueError, match=message):
    dataclasses.replace(data, **changes)


def test_unknown_tasks_and_splits_are_refused(data):
  with pytest.raises(ValueError, match=r"Unknown task 'nothing'.*training_copy"):
    batches.get_task("nothing")
  with pytest.raises(ValueError, match="no split 'dev'; it has"):
    batches.check_splits(data, ("train", "dev"))
