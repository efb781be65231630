"""Reading checkpoints and vocabularies runs no code."""

import pathlib

import msgpack
import numpy as np
import pytest

from specdec_t5x.checkpoints.checkpoint import INDEX, Checkpoint
from tests.errors import folders


class Malicious:
  """Leaves a file behind after unpickling."""

  def __init__(self, path):
    self._path = path

  def __reduce__(self):
    return pathlib.Path.touch, (self._path,)


def objects(path) -> bytes:
  """Returns an array of objects in Flax's format: shape, dtype, bytes (a pickle)."""
  data = np.array([Malicious(path)], dtype=object).dumps()
  return msgpack.packb(((1,), "object", data))


@pytest.mark.parametrize("code", [1, 2, 3, 77])
def test_an_index_of_python_objects_is_refused(tmp_path, code):
  folder, trace = tmp_path / "checkpoint_1", tmp_path / "trace"
  folder.mkdir()
  leaf = msgpack.ExtType(code, objects(trace))
  index = {"version": 3, "optimizer": {"target": {"kernel": leaf}, "state": {}}}
  (folder / INDEX).write_bytes(msgpack.packb(index))
  with pytest.raises(ValueError, match="checkpoint_1"):
    Checkpoint.open(str(folder)).settings()
  assert not trace.exists()


@pytest.mark.parametrize("code", [1, 3])
def test_a_flax_file_of_python_objects_is_refused(tmp_path, code):
  folder = folders.write(tmp_path / "theirs")
  trace = tmp_path / "trace"
  (folder / folders.WEIGHTS).unlink()
  leaf = msgpack.ExtType(code, objects(trace))
  contents = msgpack.packb({"shared": {"embedding": leaf}})
  (folder / "flax_model.msgpack").write_bytes(contents)
  with pytest.raises(ValueError, match=r"flax_model.msgpack"):
    Checkpoint.open(str(folder)).settings()
  assert not trace.exists()
