"""Reads a dataset of tf.data row by row."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np
from etils import epy

with epy.lazy_imports():
  import tensorflow as tf


def rows(dataset: tf.data.Dataset) -> Iterator[Mapping[str, np.ndarray]]:
  """Yields the examples of a dataset, without autotuning.

  tf.data's autotuning has a thread that sleeps for longer and longer times. Deleting an
  iterator may wait for this thread for seconds (TensorFlow 2.21).
  """
  options = tf.data.Options()
  options.autotune.enabled = False
  return dataset.with_options(options).as_numpy_iterator()
