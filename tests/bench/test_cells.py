"""Measured cells outlive the run, whatever ends it."""

import json

import pytest

from specdec_t5x.bench.cells import Cells

KEY = {"gamma": 3, "temperature": 0.0, "device": "cpu cpu"}


def test_a_cell_is_found_by_all_of_its_key(tmp_path):
  first = Cells(tmp_path / "new")
  assert first.find(KEY) is None
  first.add(KEY, {"alpha": 0.5})
  (line,) = first.path.read_text().splitlines()
  assert json.loads(line) == {"key": KEY, "result": {"alpha": 0.5}}
  again = Cells(tmp_path / "new")
  assert again.unasked() == 0  # Nobody asked for anything.
  assert again.find(dict(reversed(KEY.items()))) == {"alpha": 0.5}
  assert again.find({**KEY, "device": "gpu H100"}) is None
  assert again.find({**KEY, "gamma": 4}) is None


@pytest.mark.parametrize("cut", [1, 20, 60])
def test_a_truncated_last_line_is_said_and_measured_again(cut, tmp_path, capsys):
  first = Cells(tmp_path)
  first.add(KEY, {"alpha": 0.5})
  first.add({**KEY, "gamma": 4}, {"alpha": 0.6})
  whole = first.path.read_text()
  first.path.write_text(whole[:-cut])
  second = Cells(tmp_path)
  # A line that lacks its end alone is whole.
  said = capsys.readouterr().err
  assert said.count("line 2: not a complete cell") == said.count("\n") == (cut > 1)
  assert second.find(KEY) == {"alpha": 0.5}
  assert (second.find({**KEY, "gamma": 4}) is None) == (cut > 1)
  second.add({**KEY, "gamma": 4}, {"alpha": 0.6})
  second.add({**KEY, "gamma": 5}, {"alpha": 0.7})
  third = Cells(tmp_path)
  found = [third.find({**KEY, "gamma": gamma})["alpha"] for gamma in (3, 4, 5)]
  assert found == [0.5, 0.6, 0.7]
  # Nothing was taken out.
  assert third.path.read_text().startswith(whole[:-cut])
