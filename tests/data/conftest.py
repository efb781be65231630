"""Paths to real data, and a clean TFDS directory for each test."""

import pytest
import seqio

from tests import real_data as data_at_hand


@pytest.fixture
def real_data():
  """A function: path below the real data, or a skip that says what is absent."""
  return lambda path: str(data_at_hand.path(path))


@pytest.fixture
def tfds_dir(tmp_path):
  """An empty directory that seqio's TFDS tasks read from during the test."""
  directory = str(tmp_path / "tfds")
  seqio.set_tfds_data_dir_override(directory)
  yield directory
  seqio.set_tfds_data_dir_override(None)


@pytest.fixture
def write(tmp_path):
  """A function: writes bytes or text to a file of this name, returns the path."""

  def to_file(name, content):
    data = content if isinstance(content, bytes) else content.encode()
    (tmp_path / name).write_bytes(data)
    return str(tmp_path / name)

  return to_file
