"""Reads files on a disk or in a bucket."""

from __future__ import annotations

import pathlib

from etils import epy

from specdec_t5x.hugging_face import lfs

with epy.lazy_imports():
  import tensorflow as tf


def read_bytes(path: str) -> bytes:
  """Returns a file's contents. TensorFlow reads files in buckets only.

  Raises:
    OSError: if the file can't be read.
    ValueError: if the file is a pointer of Git LFS.
  """
  if "://" not in path:
    contents = pathlib.Path(path).read_bytes()
  else:
    contents = _read_bucket(path)
  lfs.check_file(path, contents)
  return contents


def _read_bucket(path: str) -> bytes:
  try:
    with tf.io.gfile.GFile(path, "rb") as file:
      return file.read()
  except tf.errors.OpError as error:
    raise OSError(str(error)) from error
