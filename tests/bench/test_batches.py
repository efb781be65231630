"""Ways beside each other on a tiny pair: lengths and policies by batch, copies."""

import json

from tests.bench.conftest import named, ran
from tests.t5x_bridge import tiny


def test_every_batch_gives_the_plain_outputs(pair, tmp_path, capsys):
  (tmp_path / "lines.txt").write_text("\n".join(tiny.sentences(5, seed=4)))
  inputs = f"--inputs={tmp_path / 'lines.txt'}"
  flags = "--gamma 2 --gammas 2 --max-length 8 --batches 2 --queue 2"
  flags += " --policies fixed"
  found = ran("batches", tmp_path, *pair, inputs, *flags.split())["rows"]
  names = ("plain", "gamma 2", "fixed")
  settings = [f"{name}{more}" for name in names for more in ("", ", SLOTS")]
  assert [row["setting"] for row in found] == settings
  # Two groups of two batches of two; the last input stands in for three more.
  assert {row["identical"] for row in found} == {8}
  assert found[0]["speed"]["median"] == 1
  assert found[0]["drafted"] == 0 < found[2]["drafted"] == found[3]["drafted"]
  said = capsys.readouterr().out
  assert "5 inputs" in said
  assert "Fastest fixed length: gamma 2 at batch 2." in said


def test_a_target_drafts_for_itself(files, tmp_path):
  given = named(files, draft="quantized")
  flags = "--gamma 3 --gammas 2 --max-length 8 --batches 2 --policies fixed"
  found = ran("batches", tmp_path, *given, *flags.split())["rows"]
  assert [row["setting"] for row in found] == ["plain", "gamma 2", "fixed"]
  assert {row["identical"] for row in found} == {4}
  assert found[0]["drafted"] == 0 < found[1]["drafted"]
  assert found[1]["tokens_per_call"]["value"] > 2
  assert found[2]["tokens_per_call"]["value"] > found[1]["tokens_per_call"]["value"]


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
  # So are the first sentences of the input.
  path.write_text('{"article": "the old dog. a cat. the man"}\n')
  (row,) = ran("copy", tmp_path, *flags, "--lead=1")["rows"]
  assert row["identical"] == row["texts"] == 1
  assert row["alpha"]["value"] > 0.5
