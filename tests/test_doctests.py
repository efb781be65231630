"""The examples in docstrings are right."""

import doctest
import importlib
import sys

import pytest

from tests import commands
from tests.real_data import ROOT

PACKAGES = ("specdec_t5x", "benchmarks", "lab")
SCRIPTS = ("docs", "t5x_runtime/editdistance")  # Folders without packages.
WITH_EXAMPLES = [
  path.relative_to(ROOT).with_suffix("")
  for folder in PACKAGES + SCRIPTS
  for path in sorted((ROOT / folder).rglob("*.py"))
  if " >>> " in path.read_text()
]


@pytest.mark.parametrize("path", WITH_EXAMPLES, ids=str)
def test_examples_in_docstrings(path, unchecked, monkeypatch):
  if path.name == "editdistance":
    pytest.importorskip("rapidfuzz")
  if path.parts[0] in PACKAGES:
    module = importlib.import_module(".".join(path.parts))
  else:
    module = commands.script_module(path.name, path.parent)
    monkeypatch.setitem(sys.modules, path.name, module)  # doctest looks here.
  result = doctest.testmod(module)
  assert result.attempted
  assert not result.failed
