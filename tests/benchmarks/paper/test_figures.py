"""Figures of the paper: drawn, with measured points, and refused without matplotlib."""

import importlib.util
import json

import pytest

from benchmarks.__main__ import main
from benchmarks.paper import figures

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("steady_parts")]

CURVES = ("figure2", "figure3", "figure4")


@pytest.mark.parametrize("name", CURVES)
def test_curves_with_points(name, measured, tmp_path, capsys):
  flags = [f"--points={measured / 'table4.json'}", "--output", str(tmp_path)]
  assert main([name, *flags]) == 0
  for kind in ("json", "md", "png", "svg"):
    assert (tmp_path / f"{name}.{kind}").stat().st_size > 500
  rows = json.loads((tmp_path / f"{name}.json").read_text())["rows"]
  points = [row for row in rows if row["of"].startswith("measured: small, yours, T=0")]
  # Figure 3 shows the fastest gamma alone.
  assert len(points) == (1 if name == "figure3" else 2)
  assert "cpu" in points[0]["of"]
  assert any(row["of"].startswith("paper") for row in rows)
  assert "measured: small" in capsys.readouterr().out


def test_a_figure_is_deterministic(tmp_path):
  for name in ("a", "b"):
    assert main(["figure2", "--output", str(tmp_path / name)]) == 0
  one, other = ((tmp_path / name / "figure2.svg").read_bytes() for name in ("a", "b"))
  assert one == other


def test_figure_5_draws_every_call(measured, pair_flags):
  flags = ["--gammas", "3", "1", "--input", "1", "--output", str(measured)]
  assert main(["figure5", *pair_flags, *flags]) == 0
  rows = json.loads((measured / "figure5.json").read_text())["rows"]
  assert [row["decoding"] for row in rows] == ["gamma = 3", "gamma = 1", "plain"]
  three, _, plain = rows
  assert three["draft_steps"] == 3 * three["calls"]
  assert plain["calls"] == plain["tokens"] == three["tokens"] >= three["calls"]
  boxes = list(figures.boxes(three))
  kinds = [kind for _, _, kind in boxes]
  assert kinds[:3] == ["target encoder", "draft encoder", "draft"]
  assert kinds.count("target") == three["calls"]
  assert kinds.count("draft") == three["draft_steps"]
  assert (measured / "figure5.svg").stat().st_size > 1000


def test_a_number_beyond_the_inputs_is_refused(measured, pair_flags, capsys):
  flags = ["--gammas", "3", "1", "--input", "99", "--output", str(measured)]
  assert main(["figure5", *pair_flags, *flags]) == 1
  assert "number of decoded inputs (3)" in capsys.readouterr().err


def test_without_matplotlib_nothing_is_done(tmp_path, monkeypatch, capsys):
  monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
  for name in (*CURVES, "figure5"):
    assert main([name, "--output", str(tmp_path / "out")]) == 1
    assert "pip install 'specdec_t5x[reproduce]'" in capsys.readouterr().err
  assert not (tmp_path / "out").exists()
