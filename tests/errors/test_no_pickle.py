"""Reading checkpoints and vocabularies runs no code."""

import ast
import pathlib

import msgpack
import numpy as np
import pytest

from specdec_t5x.checkpoints import t5x_index
from specdec_t5x.checkpoints.checkpoint import Checkpoint
from tests.e2e.runs import ROOT
from tests.errors import folders

FOLDERS = ("specdec_t5x", "t5x_runtime", "scripts")
MODULES = {"pickle", "cPickle", "dill", "cloudpickle", "joblib", "marshal", "shelve"}
MODULES |= {"yaml", "runpy", "code"}
BUILTINS = {"eval", "exec", "compile", "__import__"}
# Functions of libraries that unpickle files.
LOADERS = {("torch", "load"), ("pd", "read_pickle"), ("pandas", "read_pickle")}


def findings(tree) -> list[str]:
  """Returns the names in a module that could run code from a file."""
  names = []
  for node in ast.walk(tree):
    if isinstance(node, ast.Import):
      names += [x.name for x in node.names if x.name.split(".")[0] in MODULES]
    elif isinstance(node, ast.ImportFrom):
      names += [node.module] if (node.module or "").split(".")[0] in MODULES else []
    elif isinstance(node, ast.Call):
      function = node.func
      if isinstance(function, ast.Name) and function.id in BUILTINS:
        names.append(function.id)
      if isinstance(function, ast.Attribute) and isinstance(function.value, ast.Name):
        name = function.value.id, function.attr
        names += [".".join(name)] if name in LOADERS else []
      names += [k.arg for k in node.keywords if k.arg == "allow_pickle" and not _no(k)]
  return names


def _no(keyword) -> bool:
  return isinstance(keyword.value, ast.Constant) and keyword.value.value is False


@pytest.mark.parametrize("folder", FOLDERS)
def test_no_module_unpickles_or_evaluates(folder):
  files = sorted((ROOT / folder).rglob("*.py"))
  assert files
  for file in files:
    assert findings(ast.parse(file.read_text())) == [], file


@pytest.mark.parametrize(
  "source",
  [
    "import pickle",
    "from yaml import load",
    "eval(text)",
    "torch.load(path)",
    "np.load(path, allow_pickle=True)",
  ],
)
def test_findings_reports_every_kind(source):
  assert findings(ast.parse(source))


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
  (folder / t5x_index.INDEX).write_bytes(msgpack.packb(index))
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
