"""The copy draft on given outputs: what is decoded is what was given."""

import json

import pytest

from specdec_t5x.bench.compare import COPY as COMMAND
from tests.t5x_bridge import tiny


@pytest.fixture
def flags(tmp_path):
  texts = tmp_path / "texts.jsonl"
  rows = [{"article": text, "highlights": text} for text in tiny.sentences(3, seed=4)]
  texts.write_text("\n".join(map(json.dumps, rows)))
  vocabulary = tiny.train_vocabulary(tmp_path)
  return [
    *(f"--texts={texts}", f"--vocabulary={vocabulary}", "--size=tiny", "--gamma=3"),
    *("--matches", "1", "--input-length=48", "--max-length=48"),
    f"--output={tmp_path / 'out'}",
  ]


def test_an_output_that_repeats_its_input_is_copied(flags, tmp_path, capsys):
  assert COMMAND.main(flags) == 0
  (row,) = json.loads((tmp_path / "out" / "copy.json").read_text())["rows"]
  assert row["identical"] == row["texts"] == 3
  assert row["tokens_per_call"]["value"] > 2
  assert row["alpha"]["value"] > 0.7
  assert "| 3 of 3 |" in capsys.readouterr().out


def test_the_first_sentences_of_the_input_may_be_the_output(flags, tmp_path):
  (tmp_path / "texts.jsonl").write_text('{"article": "the old dog. a cat. the man"}\n')
  assert COMMAND.main([*flags, "--lead=1"]) == 0
  (row,) = json.loads((tmp_path / "out" / "copy.json").read_text())["rows"]
  assert row["identical"] == row["texts"] == 1
  assert row["alpha"]["value"] > 0.5


def test_bad_input_is_named(flags, tmp_path, capsys):
  assert COMMAND.main([*flags, "--source=story"]) == 1
  assert "story" in capsys.readouterr().err
  assert not (tmp_path / "out" / "copy.json").exists()
