"""Reads files on a disk or in a bucket."""

from __future__ import annotations

import os
import pathlib
import stat

from etils import epy

from specdec_t5x.hugging_face import lfs

with epy.lazy_imports():
  import tensorflow as tf


def read_bytes(path: str) -> bytes:
  """Returns a file's contents. TensorFlow reads files in buckets only.

  Raises:
    OSError: if the file can't be read. A pipe is refused, because texts are read twice.
    ValueError: if the file is a pointer of Git LFS.
  """
  path = os.path.expanduser(path)
  if "://" not in path:
    if not stat.S_ISREG(os.stat(path).st_mode):
      raise OSError("the path is not a regular file")
    contents = pathlib.Path(path).read_bytes()
  else:
    try:
      with tf.io.gfile.GFile(path, "rb") as file:
        contents = file.read()
    except tf.errors.OpError as error:
      raise OSError(str(error)) from error
  lfs.check(path, contents)
  return contents
