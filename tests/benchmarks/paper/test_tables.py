"""Measured tables on a tiny random pair: numbers, and resuming."""

import json
from dataclasses import replace

import pytest

from benchmarks import cells, study
from benchmarks.study import load_draft
from specdec_t5x.analysis import theory
from specdec_t5x.checkpoints.parameters import T5XParameters
from specdec_t5x.training import ngrams
from tests.benchmarks.conftest import ran

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("steady_parts")]

SPEEDS = ["--gammas", "1", "3", "--temperatures", "0"]


def ours(folder, name):
  rows = json.loads((folder / f"{name}.json").read_text())["rows"]
  return [row for row in rows if row["task"] == "yours"]


def test_table_4_has_a_row_per_gamma_with_the_theory_s_numbers(measured):
  one, three = ours(measured, "table4")
  assert (one["gamma"], three["gamma"]) == (1, 3)
  for row in (one, three):
    alpha, gamma = row["alpha"]["value"], row["gamma"]
    assert row["c"] == pytest.approx(2 / gamma / 5)
    theorem = theory.walltime_improvement(alpha, gamma, row["c"])
    assert row["theorem"] == pytest.approx(theorem)
    assert row["block"] == pytest.approx(10 / 5)
    with_block = theory.expected_tokens(alpha, gamma) * 5 / 12
    assert row["with_block"] == pytest.approx(with_block)
    ratio = row["speed"]["median"] / row["predicted"]["median"]
    assert row["ratio"] == pytest.approx(ratio)
    assert 1 <= row["tokens_per_call"]["value"] <= gamma + 1


def test_tables_2_and_3_reuse_the_cells_of_table_4(measured, pair_flags, monkeypatch):
  monkeypatch.setattr(cells, "measure_cell", None)
  ran("table2", measured, *pair_flags, *SPEEDS)
  (row,) = ours(measured, "table2")
  assert row["gammas"] == "1 3"
  best = max(ours(measured, "table4"), key=lambda r: r["speed"]["median"])
  assert (row["gamma"], row["speed"]) == (best["gamma"], best["speed"])
  assert row["identical"] == "3/3" or row["tokens"] >= 6
  assert row["alpha"]["low"] <= row["alpha"]["value"] <= row["alpha"]["high"]
  ran("table3", measured, *pair_flags, "--gamma=3", "--temperatures", "0")
  assert ours(measured, "table3")[0]["alpha"] == ours(measured, "table4")[1]["alpha"]


def test_a_killed_run_is_resumed(measured, pair_flags):
  before = ours(measured, "table4")
  (path,) = (
    path
    for path in (measured / "cells").iterdir()
    if json.loads(path.read_text())["key"]["gamma"] == 3
  )
  # The run was killed while the second cell was written.
  path.with_suffix(".part").write_text(path.read_text()[:200])
  path.unlink()
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
  ran("table2", measured, *pair_flags, *SPEEDS)
  assert len([*(measured / "cells").iterdir()]) == 2 + 2


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
  assert {row["paper_target"] for row in dialog} == {"LaMDA (137B)"}
  assert len(dialog) == 6
  assert all("alpha" not in row for row in dialog)


def test_table_5_accepts_more_with_less_lenience(pair_flags, tmp_path):
  flags = ["--leniences", "1", "0.1", "--gamma", "3", "--greedy-gamma", "2"]
  rows = ran("table5", tmp_path, *pair_flags, *flags)["rows"]
  sampled, lenient, greedy, lenient_greedy = ours(tmp_path, "table5")
  assert (sampled["temperature"], sampled["lenience"]) == ("1", "1")
  assert lenient["alpha_by_counts"]["value"] > sampled["alpha_by_counts"]["value"]
  assert (
    lenient_greedy["alpha_by_counts"]["value"] >= greedy["alpha_by_counts"]["value"]
  )
  assert sampled["speed"] == "not timed"
  assert lenient_greedy["speed"]["median"] > 0
  assert len(rows) == 4 + 16 + 4


def test_a_table_of_n_grams_gives_a_draft_for_every_order(tmp_path):
  table, params = ngrams.estimate([[2, 3, 1], [2, 4, 1]], 8, order=3)
  T5XParameters(table, str(tmp_path)).save(0, params)
  folder = str(tmp_path / "checkpoint_0")
  orders = [load_draft("x", f"{folder}{at}", "float32").model for at in ("@1", "")]
  assert [model.network.config.order for model in orders] == [1, 3]
  with pytest.raises(ValueError, match="a number after @"):
    load_draft("x", f"{folder}@two", "float32")
  with pytest.raises(ValueError, match="NGRAM_ORDER must be from 1 to 3"):
    load_draft("x", f"{folder}@4", "float32")
