"""Paths to real data, and a clean TFDS directory for each test."""

import os
import pathlib

import pytest
import seqio

_REPOSITORY = pathlib.Path(__file__).parents[2]
_DATA = pathlib.Path(
  os.environ.get("SPECDEC_TEST_DATA", _REPOSITORY.parent / "shared" / "data")
)


@pytest.fixture
def real_data():
  """A function: path below the real data, or a skip that says what is absent."""

  def find(path):
    if not (_DATA / path).exists():
      pytest.skip(f"no {_DATA / path}; set SPECDEC_TEST_DATA to the real data")
    return str(_DATA / path)

  return find


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
