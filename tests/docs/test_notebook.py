"""docs/tutorial.ipynb runs from its first cell to its last."""

import contextlib

import pytest

from tests import processes
from tests.docs import sandbox
from tests.real_data import ROOT

nbclient = pytest.importorskip("nbclient", reason="the extra `test` has nbclient")
nbformat = pytest.importorskip("nbformat", reason="nbclient brings it")

NOTEBOOK = ROOT / "docs" / "tutorial.ipynb"


def test_the_tutorial_runs(tmp_path, monkeypatch):
  sandbox.make(tmp_path)
  monkeypatch.setenv("PYTHONPATH", processes.environment()["PYTHONPATH"])
  notebook = nbformat.read(NOTEBOOK, as_version=4)
  resources = {"metadata": {"path": str(tmp_path)}}
  with contextlib.chdir(tmp_path):
    nbclient.NotebookClient(notebook, timeout=280, resources=resources).execute()
  kinds = {
    kind
    for cell in notebook.cells
    for output in cell.get("outputs", ())
    for kind in output.get("data", ())
  }
  assert {"image/svg+xml", "text/html", "image/png"} <= kinds


def test_its_outputs_are_kept_and_none_is_an_error():
  cells = nbformat.read(NOTEBOOK, as_version=4).cells
  code = [cell for cell in cells if cell.cell_type == "code"]
  assert [cell.execution_count for cell in code] == list(range(1, len(code) + 1))
  outputs = [output for cell in code for output in cell.outputs]
  assert outputs
  assert not [o for o in outputs if o.output_type in ("error", "stream") and _bad(o)]


def _bad(output):
  return output.output_type == "error" or output.name == "stderr"
