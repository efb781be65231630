"""The page of a run of `t5x.infer`, or of two runs."""

import json
import re

import pytest

from scripts import show_run
from specdec_t5x.trace import runs
from tests.trace import browser

NAME = "task-predict_with_aux.jsonl-00000-of-00001"


def record(source="a cat", output="eine Katze", ids=(5, 6, 1), **counts):
  aux = {"tokens": 3, "target_calls": 3, "accepted": 0, "acceptance_positions": 0}
  return {
    "inputs": {"inputs_pretokenized": source},
    "prediction": output,
    "prediction_tokens": list(ids),
    "aux": aux | counts,
  }


def run(folder, *records):
  folder.mkdir()
  text = "".join(json.dumps(example) + "\n" for example in records)
  (folder / NAME).write_text(text)
  return str(folder)


PLAIN = record(), record("a <dog>", "ein Hund", (7, 8, 1))
SPEC = (
  record(target_calls=1, accepted=2, acceptance_positions=2),
  record("a <dog>", "ein Hut", (7, 9, 1), accepted=1, acceptance_positions=4),
)


def test_examples_are_read_from_the_command_s_output(tmp_path):
  first, second = runs.load(run(tmp_path / "spec", *SPEC))
  assert (first.source, first.output, first.ids) == ("a cat", "eine Katze", [5, 6, 1])
  assert (first.per_call, first.alpha) == (3.0, 1.0)
  assert (second.per_call, second.alpha) == (1.0, 0.25)
  assert runs.load(run(tmp_path / "plain", *PLAIN))[0].alpha is None


def test_the_best_of_several_decodes_is_shown_and_every_decode_is_counted(tmp_path):
  several = record(output=["worse", "best"], ids=[[5, 1], [6, 1]])
  several["aux"] = {name: [1, 2] for name in several["aux"]}
  (found,) = runs.load(run(tmp_path / "run", several))
  assert (found.output, found.ids, found.tokens, found.tried) == ("best", [6, 1], 3, 3)


def rows(text):
  body = re.search(r"<tbody>\n(.*)\n</tbody>", text, re.DOTALL)[1]
  return [
    re.findall(r"<td[^>]*>(.*?)</td>", line.removeprefix("<tr>"))
    for line in body.splitlines()
  ]


def test_rows_are_sorted_by_tokens_per_call_and_differences_are_marked(tmp_path):
  page = str(tmp_path / "both.html")
  folders = run(tmp_path / "plain", *PLAIN), run(tmp_path / "spec", *SPEC)
  assert show_run.main([*folders, f"--html={page}"]) == 0
  with open(page, encoding="utf-8") as file:
    text = file.read()
  assert rows(text) == [
    [
      *("2", "a &lt;dog&gt;"),
      *("ein Hu<mark>nd</mark>", "3", "1.00", ""),
      *("ein Hu<mark>t</mark>", "3", "1.00", "0.25"),
    ],
    ["1", "a cat", "eine Katze", "3", "1.00", "", "eine Katze", "3", "3.00", "1.00"],
  ]
  assert "1 of 2 outputs are the same" in text
  # 6 tokens in 4 calls; 3 of 6 tested tokens are accepted.
  assert '<td class="number">1.50</td><td class="number">0.50</td>' in text
  assert text.count('<circle class="target" cx') == 3
  assert not re.search(r"(src|href)=|url\(|https?:|@import", text)


def test_a_run_with_places_shows_rejections_by_position(tmp_path):
  """The chart shows the share of rejected tokens by position in the draft.

  At position 1, 1 of 3 drafted tokens is rejected; at position 2, 1 of 2.
  """
  kept = [1, 2, 0, 0], [2, 1, 0, 0], [1, 0, 0, 0]
  records = [record(tokens=3, places=places) for places in kept]
  text = runs.to_html({"spec": runs.load(run(tmp_path / "spec", *records))})
  assert re.findall(r"<title>place (.*?)</title>", text) == [
    "1: 1 of 3 rejected",
    "2: 1 of 2 rejected",
  ]
  strips = re.findall(r'<div class="strip".*?</div>', text)
  assert [re.findall('<i class="(.*?)">', strip) for strip in strips] == [
    ["accepted", "recovered", "bonus"],
    ["recovered", "accepted", "bonus"],
    ["accepted", "bonus", "bonus"],
  ]
  plain = runs.to_html({"plain": runs.load(run(tmp_path / "plain", *PLAIN))})
  assert not re.search('place 1|class="strip"', plain)


def test_a_run_without_drafts_has_no_shares(tmp_path):
  resting = runs.load(run(tmp_path / "run", record(places=[0, 0, 0])))
  text = runs.to_html({"resting": resting})
  assert "Share of drafted tokens" not in text
  assert text.count('<i class="bonus">') == 3


@browser.needed
def test_a_click_on_a_column_sorts_and_a_second_click_reverses(tmp_path):
  third = record("a horse", "ab", (3, 1), accepted=1, acceptance_positions=2)
  page = runs.to_html({"spec": runs.load(run(tmp_path / "spec", *SPEC, third))})
  order = browser.run_script(page, "sort.js", tmp_path)
  # Tokens a call 3, 1, 1; outputs eine Katze, ein Hut, ab; alpha 1, .25, .5.
  assert order == ["2,3,1", "3,2,1d", "1,2,3a", "1,2,3d", "1,3,2d"]


@pytest.mark.parametrize(
  ("folders", "message"),
  [
    (["nowhere"], r"nowhere: expected the INFER_OUTPUT_DIR of one finished run"),
    (["plain", "other"], r"plain and other have different inputs"),
    (["plain", "spec", "other"], "Expected one or two runs with examples"),
    (["empty"], "Expected one or two runs with examples"),
    (["scores"], r"scores.*, line 1: expected an example written by t5x.infer"),
  ],
)
def test_invalid_runs_are_refused(folders, message, tmp_path, monkeypatch, capsys):
  monkeypatch.chdir(tmp_path)
  run(tmp_path / "plain", *PLAIN)
  run(tmp_path / "spec", *SPEC)
  run(tmp_path / "other", record("a horse"))
  run(tmp_path / "empty")
  run(tmp_path / "scores", {"inputs": {}, "score": 1.0})
  assert show_run.main([*folders, "--html=page.html"]) == 1
  assert re.search(message, capsys.readouterr().err)
