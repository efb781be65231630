"""Reading whole files, on a disk or in a bucket."""

from __future__ import annotations

import pathlib

from etils import epy

with epy.lazy_imports():
  import tensorflow as tf


def read_bytes(path: str) -> bytes:
  """Returns a file's contents; TensorFlow reads those of buckets alone.

  Raises:
    OSError: the file can't be read.
  """
  if "://" not in path:
    return pathlib.Path(path).read_bytes()
  try:
    with tf.io.gfile.GFile(path, "rb") as file:
      return file.read()
  except tf.errors.OpError as error:
    raise OSError(str(error)) from error
