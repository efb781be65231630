"""The demo's progress lines and chart."""

import sys
import xml.etree.ElementTree as ET

import pytest

from benchmarks.table import Column, Table
from benchmarks.timed import Spread
from specdec_t5x.demo import __main__ as demo
from specdec_t5x.demo import chart
from specdec_t5x.demo.steps import Step, Steps


def test_the_remaining_time_is_estimated_from_measured_steps(capsys):
  now = [0.0]
  four_steps = [Step("a", 1), Step("b", 5, True), Step("c", 2), Step("d", 3)]
  steps = Steps(four_steps, lambda: now[0])
  for seconds in (30.0, 0.0, 120.0, 60.0):
    with steps.step():
      now[0] += seconds
  assert capsys.readouterr().out.splitlines() == [
    "[1/4] a",
    "      30 s",
    # A weight of 5 is left, at 30 s per unit.
    "[2/4] b (cached; all: 2 min 30 s left)",
    "      0 s",
    "[3/4] c (all: 2 min 30 s left)",
    "      120 s",
    "[4/4] d (all: 2 min 30 s left)",  # A weight of 3 is left, at 150 s / 3 per unit.
    "      60 s",
  ]


def test_keeping_the_tables_of_two_pairs_is_refused(monkeypatch, capsys):
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
