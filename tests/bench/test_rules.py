"""Tokens a call of each shape of draft under each rule, on a tiny random pair."""

import json

import pytest

from specdec_t5x.bench.rules import COMMAND, shapes

SHORT = ("--gamma=2", "--stem=1", "--batch=2", "--max-length=12", "--num-inputs=3")
RULES = {
  None: {"token", "block"},
  "independent": {"recursive", "kseq", "traversal"},
  "distinct": {"recursive", "traversal"},
}


def test_every_rule_that_can_judge_a_shape_has_a_number(files, tmp_path, capsys):
  named = [f"--{name}={path}" for name, path in files.items()]
  assert COMMAND.main([*named, *SHORT, f"--output={tmp_path}"]) == 0
  rows = json.loads((tmp_path / "rules.json").read_text())["rows"]
  greedy, sampled = ([r for r in rows if r["temperature"] == t] for t in "01")
  assert len(greedy) == 5
  assert len(sampled) == 2 + 2 * 3
  for row in rows:
    numbers = {name: x for name, x in row.items() if isinstance(x, dict)}
    expected = RULES[row["siblings"]] if row["temperature"] == "1" else {"greedy"}
    assert set(numbers) == expected
    for found in numbers.values():
      assert 1 <= found["value"] <= row["depth"] + 1
      assert found["low"] <= found["value"] <= found["high"]
  assert "| T |" in capsys.readouterr().out


def test_shapes_are_as_deep_or_as_large():
  sizes = [(name, tree.size, tree.depth) for name, tree in shapes(5, 2, 2)]
  assert sizes == [
    ("chain", 5, 5),
    ("stem 2, 2 branches", 8, 5),
    ("2 candidates", 10, 5),
    ("stem 2, 2 branches", 10, 6),
    ("chain", 10, 10),
  ]


@pytest.mark.parametrize(
  ("flag", "message"),
  [
    ("--stem=2", "shorter than gamma, got --branches 2, --stem 2 and --gamma 2"),
    ("--branches=1", "at least two branches"),
    ("--draft=copy", "trees need a network or a table, got `copy`"),
  ],
)
def test_shapes_that_are_none_are_refused(flag, message, files, tmp_path, capsys):
  name = flag.partition("=")[0]
  named = [f"--{n}={path}" for n, path in files.items() if f"--{n}" != name]
  assert COMMAND.main([*named, *SHORT, flag, f"--output={tmp_path}"]) == 1
  assert message in capsys.readouterr().err
