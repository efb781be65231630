"""Measured cells outlive the run, whatever ends it."""

import json

import pytest

from specdec_t5x.bench.cells import Cells

KEY = {"gamma": 3, "temperature": 0.0, "device": "cpu cpu"}


@pytest.fixture
def said():
  return []


def cells(folder, said):
  return Cells(folder, said.append)


def test_a_cell_is_found_by_all_of_its_key(tmp_path, said):
  first = cells(tmp_path / "new", said)
  assert first.find(KEY) is None
  first.add(KEY, {"alpha": 0.5})
  (line,) = first.path.read_text().splitlines()
  assert json.loads(line) == {"key": KEY, "result": {"alpha": 0.5}}
  again = cells(tmp_path / "new", said)
  assert again.find(dict(reversed(KEY.items()))) == {"alpha": 0.5}
  assert again.find({**KEY, "device": "gpu H100"}) is None
  assert again.find({**KEY, "gamma": 4}) is None
  assert said == []


@pytest.mark.parametrize("cut", [1, 20, 60])
def test_a_truncated_last_line_is_said_and_measured_again(cut, tmp_path, said):
  first = cells(tmp_path, said)
  first.add(KEY, {"alpha": 0.5})
  first.add({**KEY, "gamma": 4}, {"alpha": 0.6})
  whole = first.path.read_text()
  first.path.write_text(whole[:-cut])
  second = cells(tmp_path, said)
  # A line that lacks its end alone is whole.
  (number,) = [1] if cut > 1 else [0]
  assert len(said) == number
  assert all("line 2: not a whole cell" in text for text in said)
  assert second.find(KEY) == {"alpha": 0.5}
  assert (second.find({**KEY, "gamma": 4}) is None) == (cut > 1)
  second.add({**KEY, "gamma": 4}, {"alpha": 0.6})
  second.add({**KEY, "gamma": 5}, {"alpha": 0.7})
  third = cells(tmp_path, said)
  assert [third.find({**KEY, "gamma": g})["alpha"] for g in (3, 4, 5)] == [
    0.5,
    0.6,
    0.7,
  ]
  # Nothing was taken out.
  assert third.path.read_text().startswith(whole[:-cut])


def test_cells_of_other_settings_are_counted(tmp_path, said):
  first = cells(tmp_path, said)
  first.add(KEY, {"alpha": 0.5})
  first.add({**KEY, "device": "tpu v4"}, {"alpha": 0.5})
  second = cells(tmp_path, said)
  assert second.unasked() == 0  # Nobody asked for anything.
  second.find(KEY)
  assert second.unasked() == 1
