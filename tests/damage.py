"""Damage to files, and streams that nobody reads."""

import contextlib
import errno
import io
import os
import resource


def halve(path):
  path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def flip_a_bit(path):
  contents = bytearray(path.read_bytes())
  contents[len(contents) // 2] ^= 1
  path.write_bytes(contents)


def make_pointer(path):
  """Replaces a file by the pointer that a clone without `git lfs pull` has."""
  lines = ("version https://git-lfs.github.com/spec/v1", f"oid sha256:{64 * 'a'}")
  path.write_text("\n".join((*lines, f"size {path.stat().st_size}", "")))


@contextlib.contextmanager
def files_of_at_most(size):
  """Limits the size of the files that this process writes, like a full disk."""
  before = resource.getrlimit(resource.RLIMIT_FSIZE)
  resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
  try:
    yield
  finally:
    resource.setrlimit(resource.RLIMIT_FSIZE, before)


class Broken(io.StringIO):
  """A stream whose reader has ended."""

  def write(self, text):
    raise BrokenPipeError(errno.EPIPE, os.strerror(errno.EPIPE))

  def flush(self):
    raise BrokenPipeError(errno.EPIPE, os.strerror(errno.EPIPE))

  def isatty(self):
    return True


def closed():
  stream = io.StringIO()
  stream.close()
  return stream


STREAMS = (lambda: None, Broken, closed)
