"""Reading files, and a dataset of tf.data row by row."""

from __future__ import annotations

import pathlib
from collections.abc import Iterator, Mapping

import numpy as np
from etils import epy

from specdec_t5x.hugging_face import lfs

with epy.lazy_imports():
  import tensorflow as tf


def read_bytes(path: str) -> bytes:
  """Returns a file's contents; TensorFlow reads those of buckets alone.

  Raises:
    OSError: the file can't be read.
    ValueError: it is a pointer of Git LFS.
  """
  if "://" not in path:
    contents = pathlib.Path(path).read_bytes()
  else:
    try:
      with tf.io.gfile.GFile(path, "rb") as file:
        contents = file.read()
    except tf.errors.OpError as error:
      raise OSError(str(error)) from error
  lfs.check_file(path, contents)
  return contents


def rows(dataset: tf.data.Dataset) -> Iterator[Mapping[str, np.ndarray]]:
  """Yields the examples, read without autotuning.

  tf.data's autotuning has a thread that sleeps for longer and longer, and what lets go
  of an iterator may have to wait until it wakes: for seconds, in which nothing happens
  (TensorFlow 2.21).
  """
  options = tf.data.Options()
  options.autotune.enabled = False
  return dataset.with_options(options).as_numpy_iterator()
