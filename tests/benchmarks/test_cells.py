"""A measured cell stays in the folder, however the run ends."""

import os

import pytest

from benchmarks.cells import Cells

KEY = {"gamma": 3, "temperature": 0.0, "device": "cpu cpu"}


def test_a_cell_is_found_by_the_complete_key(tmp_path):
  Cells(tmp_path / "new").add(KEY, {"alpha": 0.5})
  again = Cells(tmp_path / "new")
  assert again.find(dict(reversed(KEY.items()))) == {"alpha": 0.5}
  assert again.find({**KEY, "device": "gpu H100"}) is None
  assert again.get({**KEY, "gamma": 4}, lambda: {"alpha": 0.6}) == {"alpha": 0.6}
  assert again.get(KEY, None) == {"alpha": 0.5}


def test_half_of_a_cell_is_no_cell_and_is_measured_again(tmp_path, monkeypatch):
  cells = Cells(tmp_path)

  def full(file):
    raise OSError("No space left on device")

  with monkeypatch.context() as patch:
    patch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space"):
      cells.add(KEY, {"alpha": 0.5})
  assert any(cells.folder.iterdir())
  assert cells.find(KEY) is None
  assert cells.get(KEY, lambda: {"alpha": 0.6}) == {"alpha": 0.6}
