"""Copying of texts with given outputs."""

import json

import pytest

from lab.__main__ import main
from tests.benchmarks.conftest import named, ran
from tests.t5x_bridge import tiny

pytestmark = pytest.mark.slow


def test_an_output_that_repeats_its_input_is_copied(files, tmp_path, capsys):
  path = tmp_path / "texts.jsonl"
  sentences = tiny.sentences(3, seed=4)
  lines = [json.dumps({"article": text, "highlights": text}) for text in sentences]
  path.write_text("\n".join(lines))
  flags = "--size=tiny --gamma=3 --matches 1 --input-length=48 --max-length=48"
  flags = [*named({"texts": path}, vocabulary=files["vocabulary"]), *flags.split()]
  (row,) = ran("copy", tmp_path, *flags, main=main)["rows"]
  assert (row["copy_match"], row["equal"]) == (1, "3/3")
  assert row["tokens_per_call"]["value"] > 2
  assert row["alpha"]["value"] > 0.7
  assert "| 3/3   |" in capsys.readouterr().out
  # The first sentences of the input are copied as well.
  path.write_text('{"article": "the old dog. a cat. the man"}\n')
  (row,) = ran("copy", tmp_path, *flags, "--lead=1", main=main)["rows"]
  assert row["equal"] == "1/1"
  assert row["alpha"]["value"] > 0.5
