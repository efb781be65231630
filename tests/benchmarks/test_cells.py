"""A measured cell stays in the file, however the run ends."""

import json

import pytest

from benchmarks.cells import Cells

KEY = {"gamma": 3, "temperature": 0.0, "device": "cpu cpu"}


def test_a_cell_is_found_by_the_complete_key(tmp_path):
  first = Cells(tmp_path / "new")
  assert first.find(KEY) is None
  first.add(KEY, {"alpha": 0.5})
  (line,) = first.path.read_text().splitlines()
  assert json.loads(line) == {"key": KEY, "result": {"alpha": 0.5}}
  again = Cells(tmp_path / "new")
  assert again.find(dict(reversed(KEY.items()))) == {"alpha": 0.5}
  assert again.find({**KEY, "device": "gpu H100"}) is None
  assert again.find({**KEY, "gamma": 4}) is None


@pytest.mark.parametrize("cut", [1, 20, 60])
def test_a_truncated_last_line_is_reported_and_measured_again(cut, tmp_path, capsys):
  first = Cells(tmp_path)
  first.add(KEY, {"alpha": 0.5})
  first.add({**KEY, "gamma": 4}, {"alpha": 0.6})
  complete_text = first.path.read_text()
  first.path.write_text(complete_text[:-cut])
  second = Cells(tmp_path)
  # A line that lacks only the newline is whole.
  printed = capsys.readouterr().err
  count = printed.count("line 2: not a complete cell")
  assert count == printed.count("\n") == (cut > 1)
  assert second.find(KEY) == {"alpha": 0.5}
  assert (second.find({**KEY, "gamma": 4}) is None) == (cut > 1)
  second.add({**KEY, "gamma": 4}, {"alpha": 0.6})
  second.add({**KEY, "gamma": 5}, {"alpha": 0.7})
  third = Cells(tmp_path)
  alphas = [third.find({**KEY, "gamma": gamma})["alpha"] for gamma in (3, 4, 5)]
  assert alphas == [0.5, 0.6, 0.7]
  # No text was removed from the file.
  assert third.path.read_text().startswith(complete_text[:-cut])
