"""Reads files on a disk or in a bucket."""

from __future__ import annotations

import os
import pathlib
import stat

from etils import epy

from specdec_t5x.hugging_face import lfs

with epy.lazy_imports():
  import tensorflow as tf


# Contents of pipes, such as /dev/stdin and FIFOs: a pipe can be read once.
_pipes: dict[str, bytes] = {}


def read_bytes(path: str) -> bytes:
  """Returns a file's contents. TensorFlow reads files in buckets only.

  A pipe is read once, and its contents are kept for the process.

  Raises:
    OSError: if the file can't be read.
    ValueError: if the file is a pointer of Git LFS.
  """
  path = os.path.expanduser(path)
  if path in _pipes:
    return _pipes[path]
  if "://" not in path:
    mode = os.stat(path).st_mode
    contents = pathlib.Path(path).read_bytes()
    if not stat.S_ISREG(mode):
      _pipes[path] = contents
  else:
    try:
      with tf.io.gfile.GFile(path, "rb") as file:
        contents = file.read()
    except tf.errors.OpError as error:
      raise OSError(str(error)) from error
  lfs.check(path, contents)
  return contents
