"""Measured tables and figures on a tiny random pair: numbers, and resuming."""

import importlib.util
import json
from dataclasses import replace

import pytest

from benchmarks import cells, study
from benchmarks.__main__ import main
from benchmarks.paper import figures
from specdec_t5x.t5x_bridge.restore import T5XParameters
from specdec_t5x.training import ngrams
from tests.benchmarks.conftest import SHORT, ran

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("steady_parts")]

SPEEDS = ["--gammas", "1", "3", "--temperatures", "0"]
CURVES = ("figure2", "figure3", "figure4")


@pytest.fixture(scope="module")
def pair_flags(pair):
  return [*pair, *SHORT]


@pytest.fixture(scope="module")
def measured(pair_flags, steady_parts, tmp_path_factory):
  """Returns a folder with table 4."""
  folder = tmp_path_factory.mktemp("measured")
  ran("table4", folder, *pair_flags, *SPEEDS)
  return folder


def ours(folder, name):
  rows = json.loads((folder / f"{name}.json").read_text())["rows"]
  return [row for row in rows if row["task"] == "yours"]


def test_tables_2_and_3_reuse_the_cells_of_table_4(measured, pair_flags, monkeypatch):
  monkeypatch.setattr(cells, "measure_cell", None)
  fourth = ours(measured, "table4")
  assert [row["gamma"] for row in fourth] == [1, 3]
  for row in fourth:
    assert row["c"] == pytest.approx(2 / row["gamma"] / 5)
    assert row["block"] == pytest.approx(10 / 5)
    assert 1 <= row["tokens_per_call"]["value"] <= row["gamma"] + 1
  ran("table2", measured, *pair_flags, *SPEEDS)
  (row,) = ours(measured, "table2")
  assert row["gammas"] == "1 3"
  best = max(fourth, key=lambda r: r["speed"]["median"])
  assert (row["gamma"], row["speed"]) == (best["gamma"], best["speed"])
  assert row["identical"] == "3/3" or row["tokens"] >= 6
  assert row["alpha"]["low"] <= row["alpha"]["value"] <= row["alpha"]["high"]
  ran("table3", measured, *pair_flags, "--gamma=3", "--temperatures", "0")
  assert ours(measured, "table3")[0]["alpha"] == fourth[1]["alpha"]


def test_a_killed_run_is_resumed(measured, pair_flags):
  before = ours(measured, "table4")
  for path in list((measured / "cells").iterdir()):
    if json.loads(path.read_text())["key"]["gamma"] == 3:
      path.unlink()  # The run was killed while the second cell was measured.
  ran("table4", measured, *pair_flags, *SPEEDS)
  first, second = ours(measured, "table4")
  assert first == before[0]
  assert second["alpha"] == before[1]["alpha"]
  assert second["speed"] != before[1]["speed"]


@pytest.mark.parametrize("name", ["device", "code", "draft"])
def test_cells_of_another_device_code_or_training_are_not_used(
  name, measured, pair_flags, monkeypatch
):
  machine, load = study.machine, study.load_draft
  if name == "draft":
    changed = {"fingerprint": "another"}
    monkeypatch.setattr(study, "load_draft", lambda *x: replace(load(*x), **changed))
  else:
    monkeypatch.setattr(study, "machine", lambda: {**machine(), name: "another"})
  before = len([*(measured / "cells").iterdir()])
  ran("table2", measured, *pair_flags, *SPEEDS)
  assert len([*(measured / "cells").iterdir()]) == before + 2


def test_table_3_counts_without_a_clock(pair_flags, tmp_path):
  flags = "--gamma=2 --temperatures 0 1"
  rows = ran("table3", tmp_path, *pair_flags, *flags.split())["rows"]
  greedy, sampled = ours(tmp_path, "table3")
  assert (greedy["temperature"], sampled["temperature"]) == ("0", "1")
  # Distributions are one-hot, so the mass equals the count.
  assert greedy["alpha"]["value"] == greedy["alpha_by_counts"]["value"]
  assert 0 < sampled["alpha"]["value"] < 1
  for path in (tmp_path / "cells").iterdir():
    result = json.loads(path.read_text())["result"]
    assert result["costs"] is None
    assert "seconds" not in result["columns"]
  # Our rows have our target, and the paper's target has its own column.
  assert greedy["target"].startswith("ours, 0.0")
  assert "paper_target" not in greedy
  dialog = [row for row in rows if row["task"] == "dialog"]
  assert [row["paper_target"] for row in dialog] == ["LaMDA (137B)"] * 6
  assert all("alpha" not in row for row in dialog)


def test_table_5_accepts_more_with_less_lenience(pair_flags, tmp_path):
  flags = ["--leniences", "1", "0.1", "--gamma", "3", "--greedy-gamma", "2"]
  rows = ran("table5", tmp_path, *pair_flags, *flags)["rows"]
  sampled, lenient, greedy, lenient_greedy = ours(tmp_path, "table5")
  assert (sampled["temperature"], sampled["lenience"]) == ("1", "1")
  alphas = [row["alpha_by_counts"]["value"] for row in ours(tmp_path, "table5")]
  assert alphas[1] > alphas[0]
  assert alphas[3] >= alphas[2]
  assert sampled["speed"] == lenient["speed"] == "not timed"
  assert min(greedy["speed"]["median"], lenient_greedy["speed"]["median"]) > 0
  assert len(rows) == 4 + 16 + 4


def test_a_table_of_n_grams_gives_a_draft_for_every_order(tmp_path):
  table, params = ngrams.estimate([[2, 3, 1], [2, 4, 1]], 8, order=3)
  T5XParameters(table, str(tmp_path)).save(0, params)

  def order(at):
    draft = study.load_draft("x", f"{tmp_path}/checkpoint_0{at}", "float32")
    return draft.model.network.config.order

  assert (order("@1"), order("")) == (1, 3)
  with pytest.raises(ValueError, match="a number after @"):
    order("@two")


@pytest.mark.parametrize("name", CURVES)
def test_curves_with_points_are_drawn_equally_twice(name, measured, tmp_path, capsys):
  flags = [f"--points={measured / 'table4.json'}"]
  rows = ran(name, tmp_path, *flags)["rows"]
  for kind in ("json", "md", "png", "svg"):
    assert (tmp_path / f"{name}.{kind}").stat().st_size > 500
  points = [row for row in rows if row["of"].startswith("measured: small, yours, T=0")]
  # Figure 3 shows the fastest gamma alone.
  assert len(points) == (1 if name == "figure3" else 2)
  assert "cpu" in points[0]["of"]
  assert any(row["of"].startswith("paper") for row in rows)
  assert "measured: small" in capsys.readouterr().out
  drawn = (tmp_path / f"{name}.svg").read_bytes()
  ran(name, tmp_path, *flags)
  assert (tmp_path / f"{name}.svg").read_bytes() == drawn


def test_figure_5_draws_every_call(measured, pair_flags, capsys):
  flags = [*pair_flags, "--gammas", "3", "1"]
  rows = ran("figure5", measured, *flags, "--input", "1")["rows"]
  assert [row["decoding"] for row in rows] == ["gamma = 3", "gamma = 1", "plain"]
  three, _, plain = rows
  assert three["draft_steps"] == 3 * three["calls"]
  assert plain["calls"] == plain["tokens"] == three["tokens"] >= three["calls"]
  kinds = [kind for _, _, kind in figures.boxes(three)]
  assert kinds[:3] == ["target encoder", "draft encoder", "draft"]
  assert kinds.count("target") == three["calls"]
  assert kinds.count("draft") == three["draft_steps"]
  assert (measured / "figure5.svg").stat().st_size > 1000
  assert main(["figure5", *flags, "--input", "99", f"--output={measured}"]) == 1
  assert "number of decoded inputs (3)" in capsys.readouterr().err


def test_without_matplotlib_nothing_is_done(tmp_path, monkeypatch, capsys):
  monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
  for name in (*CURVES, "figure5"):
    assert main([name, "--output", str(tmp_path / "out")]) == 1
    assert "pip install 'specdec_t5x[reproduce]'" in capsys.readouterr().err
  assert not (tmp_path / "out").exists()
