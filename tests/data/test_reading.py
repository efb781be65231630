"""Rows of a dataset: all of them, and read without autotuning."""

import tensorflow as tf

from specdec_t5x.data import reading


def test_rows_are_read_without_autotuning(monkeypatch):
  found, iterate = [], tf.data.Dataset.__iter__
  note = lambda dataset: found.append(dataset) or iterate(dataset)
  monkeypatch.setattr(tf.data.Dataset, "__iter__", note)
  rows = reading.rows(tf.data.Dataset.from_tensor_slices({"a": [3, 1, 2]}).batch(2))
  assert [row["a"].tolist() for row in rows] == [[3, 1], [2]]
  assert [each.options().autotune.enabled for each in found] == [False]
