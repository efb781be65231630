"""Fixtures: a clean TFDS folder and a clean registry for every test."""

import pytest
import seqio


@pytest.fixture
def tfds_dir(tmp_path):
  """Yields an empty folder that seqio's TFDS tasks read during the test."""
  directory = str(tmp_path / "tfds")
  seqio.set_tfds_data_dir_override(directory)
  yield directory
  seqio.set_tfds_data_dir_override(None)


@pytest.fixture
def write(tmp_path):
  def to_file(name, content):
    data = content if isinstance(content, bytes) else content.encode()
    (tmp_path / name).write_bytes(data)
    return str(tmp_path / name)

  return to_file


@pytest.fixture(autouse=True)
def _restore_registry():
  """Removes a test's tasks from the registry, so that names can be reused."""
  before = set(seqio.TaskRegistry.names())
  yield
  for name in set(seqio.TaskRegistry.names()) - before:
    seqio.TaskRegistry.remove(name)


def examples(name, split="test", sequence_length=None, shuffle=False, **kwargs):
  task = seqio.get_mixture_or_task(name)
  dataset = task.get_dataset(sequence_length, split, shuffle=shuffle, **kwargs)
  return list(dataset.as_numpy_iterator())
