"""docs/tutorial.ipynb runs from the first cell to the last cell."""

import ast
import contextlib
import json
import sys

import pytest

from tests.real_data import ROOT

pytestmark = pytest.mark.slow

pytest.importorskip("IPython", reason="the extra `test` brings it")

CODE = [
  cell
  for cell in json.loads((ROOT / "docs" / "tutorial.ipynb").read_text())["cells"]
  if cell["cell_type"] == "code"
]
# Slow parts of cells, and the shorter replacements.
SHORTER = {
  "examples(8)": "examples(1)",
  "max_length=80": "max_length=12",
  "range(4)": "range(2)",
  "[1, 3, 5, 7]": "[5]",
}


@pytest.mark.usefixtures("empty_registry", "unchecked")
def test_the_tutorial_runs(folder, monkeypatch):
  """The cells run in this process; a cell displays the values of its expressions."""
  source = "\n".join("".join(cell["source"]) for cell in CODE)
  for long, short in SHORTER.items():
    assert long in source
    source = source.replace(long, short)
  shown = []
  variables = {"__name__": "tutorial"}
  monkeypatch.setattr(sys, "displayhook", shown.append)
  with contextlib.chdir(folder):
    cells = ast.Interactive(ast.parse(source).body)
    exec(compile(cells, "tutorial", "single"), variables)
  assert {"SVG", "HTML"} <= {type(value).__name__ for value in shown}
  assert len(variables["right"].lines) == 3
