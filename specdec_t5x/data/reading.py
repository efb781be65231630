"""Reading a dataset of tf.data row by row."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np
from etils import epy

with epy.lazy_imports():
  import tensorflow as tf


def rows(dataset: tf.data.Dataset) -> Iterator[Mapping[str, np.ndarray]]:
  """Yields the examples, read without autotuning.

  tf.data's autotuning has a thread that sleeps for longer and longer, and what lets go
  of an iterator may have to wait until it wakes: for seconds, in which nothing happens
  (TensorFlow 2.21).
  """
  options = tf.data.Options()
  options.autotune.enabled = False
  return dataset.with_options(options).as_numpy_iterator()
