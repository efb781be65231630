"""Fixed draft lengths, policies and copying, compared by batch size on a tiny pair."""

import json

import pytest

from tests.benchmarks.conftest import named, ran
from tests.t5x_bridge import tiny

pytestmark = pytest.mark.slow


def test_every_batch_gives_the_plain_outputs(pair, tmp_path, capsys):
  (tmp_path / "lines.txt").write_text("\n".join(tiny.sentences(5, seed=4)))
  inputs = f"--inputs={tmp_path / 'lines.txt'}"
  flags = "--gamma 2 --gammas 2 --max-length 8 --batches 2 --queue 2"
  flags += " --policies fixed"
  rows = ran("batches", tmp_path, *pair, inputs, *flags.split())["rows"]
  names = ("plain", "gamma 2", "fixed")
  settings = [f"{name}{suffix}" for name in names for suffix in ("", ", SLOTS")]
  assert [row["setting"] for row in rows] == settings
  # Two groups of two batches of two rows; the last input also fills three rows.
  assert {row["identical"] for row in rows} == {8}
  assert rows[0]["speed"]["median"] == 1
  assert rows[0]["drafted"] == 0 < rows[2]["drafted"] == rows[3]["drafted"]
  printed = capsys.readouterr().out
  assert "5 inputs" in printed
  assert "Fastest fixed length: gamma 2 at batch 2." in printed


def test_a_target_drafts_for_itself(files, tmp_path):
  pair_flags = named(files, draft="quantized")
  flags = "--gamma 3 --gammas 2 --max-length 8 --batches 2 --policies fixed"
  rows = ran("batches", tmp_path, *pair_flags, *flags.split())["rows"]
  assert [row["setting"] for row in rows] == ["plain", "gamma 2", "fixed"]
  assert {row["identical"] for row in rows} == {4}
  assert rows[0]["drafted"] == 0 < rows[1]["drafted"]
  assert rows[1]["tokens_per_call"]["value"] > 2
  assert rows[2]["tokens_per_call"]["value"] > rows[1]["tokens_per_call"]["value"]


def test_an_output_that_repeats_its_input_is_copied(files, tmp_path, capsys):
  path = tmp_path / "texts.jsonl"
  sentences = tiny.sentences(3, seed=4)
  lines = [json.dumps({"article": text, "highlights": text}) for text in sentences]
  path.write_text("\n".join(lines))
  flags = "--size=tiny --gamma=3 --matches 1 --input-length=48 --max-length=48"
  flags = [*named({"texts": path}, vocabulary=files["vocabulary"]), *flags.split()]
  (row,) = ran("copy", tmp_path, *flags)["rows"]
  assert row["identical"] == row["texts"] == 3
  assert row["tokens_per_call"]["value"] > 2
  assert row["alpha"]["value"] > 0.7
  assert "| 3 of 3 |" in capsys.readouterr().out
  # The first sentences of the input are copied as well.
  path.write_text('{"article": "the old dog. a cat. the man"}\n')
  (row,) = ran("copy", tmp_path, *flags, "--lead=1")["rows"]
  assert row["identical"] == row["texts"] == 1
  assert row["alpha"]["value"] > 0.5
