"""Tokens a call of each shape of draft under each rule, on a tiny random pair."""

from specdec_t5x.bench.rules import shapes
from tests.bench.conftest import ran

SHORT = ("--gamma=2", "--stem=1", "--batch=2", "--max-length=12", "--num-inputs=3")
RULES = {
  None: {"token", "block"},
  "independent": {"recursive", "kseq", "traversal"},
  "distinct": {"recursive", "traversal"},
}


def test_every_rule_that_can_judge_a_shape_has_a_number(pair, tmp_path, capsys):
  rows = ran("rules", tmp_path, *pair, *SHORT)["rows"]
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
