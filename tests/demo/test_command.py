"""`python -m specdec_t5x.demo` on a few sentences."""

import re

import pytest

from specdec_t5x.demo import __main__ as demo


def test_drafts_are_compared_with_plain_decoding(tmp_path, monkeypatch, capsys):
  monkeypatch.setenv("JAX_COMPILATION_CACHE_DIR", str(tmp_path))
  monkeypatch.setattr("sys.argv", ["demo", "--inputs=2"])
  demo.main()
  rows = [re.split("  +", line) for line in capsys.readouterr().out.splitlines()]
  rows = [row for row in rows if row[1:2] in (["0"], ["1"])]
  names = ["no draft", "the draft", "target in 8 bits"]
  assert [row[0] for row in rows] == 2 * names
  assert [row[2] for row in rows if row[0] == "no draft"] == ["1.00", "1.00"]
  plain, ours, rounded = rows[:3]
  assert float(ours[2]) > 3
  assert {row[4] for row in (plain, ours, rounded)} == {"2 of 2"}
  assert plain[5] == ours[5]


@pytest.mark.parametrize("count", [0, 501])
def test_a_bad_number_of_inputs_is_refused(count, monkeypatch, capsys):
  monkeypatch.setattr("sys.argv", ["demo", f"--inputs={count}"])
  with pytest.raises(SystemExit):
    demo.main()
  assert f"--inputs must be 1 to 500, got {count}" in capsys.readouterr().err
