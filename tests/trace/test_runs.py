"""The table over runs of `t5x.infer`."""

import json
import re

import pytest

from scripts import show_run

NAME = "task-predict_with_aux.jsonl-00000-of-00001"


def record(source="a cat", ids=(5, 6, 1), **counts):
  aux = {"tokens": 3, "target_calls": 3, "accepted": 0, "acceptance_positions": 0}
  return {
    "inputs": {"inputs_pretokenized": source},
    "prediction": "eine Katze",
    "prediction_tokens": list(ids),
    "aux": aux | counts,
  }


def run(folder, *records):
  folder.mkdir()
  text = "".join(json.dumps(example) + "\n" for example in records)
  (folder / NAME).write_text(text)
  return str(folder)


PLAIN = record(), record("a dog", (7, 8, 1))
SPEC = (
  record(target_calls=1, accepted=2, acceptance_positions=2),
  record("a dog", (7, 9, 1), accepted=1, acceptance_positions=4),
)


def test_a_row_has_the_totals_of_a_run(tmp_path, capsys):
  several = record(ids=[[5, 1], [6, 1]])
  several["aux"] = {name: [1, 2] for name in several["aux"]}
  folders = run(tmp_path / "plain", *PLAIN), run(tmp_path / "spec", *SPEC)
  assert show_run.main(folders) == 0
  assert show_run.main([run(tmp_path / "several", several)]) == 0
  _, plain, spec, _, decodes = map(str.split, capsys.readouterr().out.splitlines())
  assert plain[1:] == ["2", "6", "6", "1.00", "-", "2"]
  # 6 tokens in 4 calls; 3 of 6 tested tokens are accepted.
  assert spec[1:] == ["2", "6", "4", "1.50", "0.50", "1"]
  # Every decode of an input counts.
  assert decodes[1:] == ["1", "3", "3", "1.00", "1.00", "1"]


@pytest.mark.parametrize(
  ("folders", "message"),
  [
    (["nowhere"], r"nowhere: expected the INFER_OUTPUT_DIR of one finished run"),
    (["plain", "other"], r"plain and other have different inputs"),
    (["plain", "spec", "other"], r"plain and spec and other have different inputs"),
    (["scores"], r"scores.*, line 1: expected an example written by t5x.infer"),
  ],
)
def test_invalid_runs_are_refused(folders, message, tmp_path, monkeypatch, capsys):
  monkeypatch.chdir(tmp_path)
  run(tmp_path / "plain", *PLAIN)
  run(tmp_path / "spec", *SPEC)
  run(tmp_path / "other", record("a horse"))
  run(tmp_path / "scores", {"inputs": {}, "score": 1.0})
  assert show_run.main(folders) == 1
  assert re.search(message, capsys.readouterr().err)
