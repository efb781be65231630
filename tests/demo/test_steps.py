"""What the demo says of its steps, and its picture."""

import sys
import xml.etree.ElementTree as ET

import pytest

from specdec_t5x.bench.table import Column, Table
from specdec_t5x.bench.timed import Spread
from specdec_t5x.demo import __main__ as demo
from specdec_t5x.demo import chart
from specdec_t5x.demo.steps import Step, Steps


def test_the_rest_is_estimated_from_what_was_measured(capsys):
  now = [0.0]
  four = [Step("a", 1), Step("b", 5, True), Step("c", 2), Step("d", 3)]
  steps = Steps(four, lambda: now[0])
  for seconds in (30.0, 0.0, 120.0, 60.0):
    with steps.step():
      now[0] += seconds
  assert capsys.readouterr().out.splitlines() == [
    "[1/4] a",
    "      30 s",
    "[2/4] b (cached; all: 2 min 30 s left)",  # 5 of weight at 30 s.
    "      0 s",
    "[3/4] c (all: 2 min 30 s left)",
    "      120 s",
    "[4/4] d (all: 2 min 30 s left)",  # 3 of weight at 150 s / 3.
    "      60 s",
  ]


def test_one_table_is_kept_of_one_pair(monkeypatch, capsys):
  monkeypatch.setattr(sys, "argv", ["demo", "--pairs", "ende", "lm", "--keep", "demo"])
  with pytest.raises(SystemExit):
    demo.main()
  assert (
    "--keep names one table, got the pairs ['ende', 'lm']" in capsys.readouterr().err
  )


def test_the_comparison_is_drawn(tmp_path):
  def row(draft, temperature, x):
    return {
      "draft": draft,
      "temperature": temperature,
      "speed": Spread(x, x - 0.1, x + 0.2),
      "theorem": 2 * x,
    }

  rows = [row("small", "0", 1.5), row("heads", "0", 0.9), row("small", "1", 1.2)]
  table = Table("comparison", "A title", (Column("draft", "draft"),), rows)
  png, svg = chart.draw(table, str(tmp_path))
  assert (tmp_path / "comparison.png").read_bytes().startswith(b"\x89PNG")
  assert png == str(tmp_path / "comparison.png")
  assert len(list(ET.parse(svg).iter("{http://www.w3.org/2000/svg}path"))) > 3
