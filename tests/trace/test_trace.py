"""Traces of decodes of a tiny random pair, and drawings of traces."""

import itertools
import json
import re
import xml.etree.ElementTree as ET

import pytest

import specdec_t5x
from scripts import show_run
from specdec_t5x import Sampling
from specdec_t5x.trace import recording, render
from specdec_t5x.trace.recording import Token, Trace, Turn
from specdec_t5x.vocabularies.opening import open_vocabulary
from tests.t5x_bridge import tiny

TEXT = tiny.sentences(1, seed=4)[0]
SETTINGS = {"gamma": 3, "max_length": 10}
SAMPLED = {"sampling": Sampling(1.0), "seed": 2}


@pytest.fixture(scope="module")
def models():
  return tiny.pair()


@pytest.fixture(scope="module")
def greedy(models, vocabulary_path):
  return recording.record([TEXT], *models, vocabulary_path, **SETTINGS)


@pytest.fixture(scope="module")
def sampled(models, vocabulary_path):
  return recording.record([TEXT] * 6, *models, vocabulary_path, **SETTINGS, **SAMPLED)


def drawn(own=None, **drafted):
  """Returns an iteration from the target's piece and drafted pieces by outcome."""
  kind = "recovered" if "rejected" in drafted else "bonus"
  own = own and Token(own, kind, 0.5, draws=(0.5,))
  tokens = [
    Token(piece, kind, 0.5, 0.25, 0.125, (0.75,))
    for kind, pieces in drafted.items()
    for piece in pieces
  ]
  return Turn(tuple(tokens), own, 0.001, 0.003)


DRAWN = (
  drawn(
    "▁Mann", accepted=["▁ein", "<&>"], rejected=["▁Hund"], discarded=["▁bellt", "."]
  ),
  drawn(".", accepted=["▁spielt"]),
  drawn(accepted=["</s>"]),
)


def image(text, turns=DRAWN):
  return render.to_svg(Trace(text, turns, 0.002))


def of_kind(turn, kind):
  return [token.piece for token in turn.drafted if token.kind == kind]


@pytest.mark.parametrize(("name", "settings"), [("greedy", {}), ("sampled", SAMPLED)])
def test_the_iterations_add_up_to_the_output_of_generate(
  name, settings, models, vocabulary_path, request
):
  turns = request.getfixturevalue(name)[0].turns
  # In a batch with another input.
  words = {"policy": "fixed", "batch_size": 2, **SETTINGS, **settings}
  expected = specdec_t5x.generate([TEXT, "the dog"], *models, vocabulary_path, **words)[
    0
  ]
  opened = open_vocabulary(vocabulary_path)
  pieces = [recording.piece_of(opened, token) for token in expected.tokens]
  assert list(itertools.chain(*(turn.output for turn in turns))) == pieces
  assert len(turns) == expected.target_calls
  assert sum(len(of_kind(turn, "accepted")) for turn in turns) == expected.accepted
  assert sum(len(turn.drafted) for turn in turns) == expected.drafted


def test_recorded_uniforms_and_ratios_explain_acceptance(sampled, greedy):
  turns = [turn for trace in sampled for turn in trace.turns]
  tested = [t for turn in turns for t in turn.drafted if t.kind != "discarded"]
  assert {token.kind for token in tested} == {"accepted", "rejected"}
  for token in tested:
    assert (token.test < token.p / token.q) == (token.kind == "accepted")
    assert token.draws
  for turn in turns:
    if rejected := of_kind(turn, "rejected"):
      assert turn.own.kind == "recovered"
      assert rejected != [turn.own.piece]
    assert turn.target_seconds > 0
  assert all(trace.plain_seconds > 0 for trace in sampled)
  tokens = [t for turn in greedy[0].turns for t in (*turn.drafted, turn.own) if t]
  assert all(t.q is None and t.test is None and not t.draws for t in tokens)
  assert all(0 < t.p <= 1 for t in tokens)


def test_the_target_s_token_after_a_tree_is_recovered_if_a_token_is_rejected(
  models, vocabulary_path
):
  settings = {"rule": "traversal", "num_candidates": 2, **SETTINGS, **SAMPLED}
  (trace,) = recording.record([TEXT], *models, vocabulary_path, **settings)
  for turn in trace.turns:
    is_cut = bool(of_kind(turn, "rejected"))
    assert turn.own is None or (turn.own.kind == "recovered") == is_cut
  assert len(trace.turns[0].drafted) > SETTINGS["gamma"]


def test_the_target_as_draft_is_never_rejected(models, vocabulary_path):
  target = models[0]
  settings = {**SETTINGS, **SAMPLED}
  (trace,) = recording.record([TEXT], target, target, vocabulary_path, **settings)
  assert len(trace.turns) > 1
  kinds = {token.kind for turn in trace.turns for token in turn.drafted}
  assert kinds == {"accepted"}
  assert all(turn.own.kind == "bonus" for turn in trace.turns[:-1])
  with pytest.raises(ValueError, match="needs a draft or a drafter, got None"):
    recording.record([TEXT], target, None, vocabulary_path)


def test_text_has_marks_or_colours():
  assert render.to_text(DRAWN).splitlines() == [
    "accepted [rejected] (discarded) {recovered} +bonus",
    "  1  ▁ein <&> [▁Hund] (▁bellt) (.) {▁Mann}",
    "  2  ▁spielt +.",
    "  3  </s>",
  ]
  legend, first, *_ = render.to_text(DRAWN, colours=True).splitlines()
  assert "\033[31;9mrejected\033[0m" in legend
  assert first == (
    "  1  \033[32m▁ein\033[0m \033[32m<&>\033[0m \033[31;9m▁Hund\033[0m "
    "\033[2m▁bellt\033[0m \033[2m.\033[0m \033[34m▁Mann\033[0m"
  )


def test_control_characters_are_replaced_and_wide_ones_take_two_columns():
  turns = (drawn("\0", accepted=["\033[2J", "a\nb"]),)
  assert render.to_text(turns).splitlines()[1:] == ["  1  �[2J a�b +�"]
  assert "\033" not in image("\033", turns)
  ET.fromstring(image("\0", turns))
  assert image("二人", DRAWN[:1]).count('textLength="33.6"') >= 1


def parse(svg):
  root = ET.fromstring(svg)
  return root, [(e.tag.rpartition("}")[2], e) for e in root.iter()]


def test_the_image_has_every_token_with_the_style_of_its_kind():
  _, elements = parse(image('A <title> & "more"'))
  texts = [(e.get("class"), e.text) for name, e in elements if name == "text"]
  tokens = [t for t in texts if t[0] in render.STYLES and t[0] != t[1]]
  every = [token for turn in DRAWN for token in (*turn.drafted, turn.own) if token]
  assert tokens == [(token.kind, token.piece) for token in every]
  assert texts[0] == ("title", 'A <title> & "more"')
  assert [text for kind, text in texts if kind == "number"] == [
    *("1", "2", "3"),
    "12.0 ms with speculation, 12.0 ms without",
  ]


def test_the_image_has_room_for_everything_and_a_time_line_to_scale():
  root, elements = parse(image("a title longer than any line " * 5))
  width, height = float(root.get("width")), float(root.get("height"))
  bars = {"draft": [], "target": [], "plain": []}
  for name, element in elements:
    size = element.get("width") if name == "rect" else element.get("textLength")
    if name in ("rect", "text") and size:
      assert float(element.get("x")) + float(size) <= width
      assert float(element.get("y")) + float(element.get("height", 0)) <= height
    if name == "rect" and element.get("class"):
      bars[element.get("class")].append(float(size) + 0.6)
  draft, *others = bars["draft"]
  assert others == [draft] * 2  # 1 ms
  assert bars["target"] == pytest.approx([3 * draft] * 3, rel=0.01)
  assert bars["plain"] == pytest.approx([2 * draft] * 6, rel=0.01)


def test_the_page_has_the_facts_of_every_token_and_needs_no_network():
  page = render.to_html([Trace("input", DRAWN, 0.002)] * 2)
  rejected = "rejected, p 0.5, q 0.25, tested with u 0.125, drawn with u 0.75"
  assert page.count(f"<title>{rejected}</title>") == 2
  assert page.count("<title>recovered, p 0.5, drawn with u 0.5</title>") == 2
  assert page.count("<title>recovered</title>") == 2  # The legend has no numbers.
  addresses = page.replace('xmlns="http://www.w3.org/2000/svg"', "")
  assert not re.search(r"(src|href)=|url\(|https?:|@import", addresses)


# ---- The table over runs of t5x.infer. ----

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
  single = run(tmp_path / "single", record(ids=[5, 1]))
  assert show_run.main([run(tmp_path / "several", several), single]) == 0
  lines = map(str.split, capsys.readouterr().out.splitlines())
  _, plain, spec, _, decodes, single = lines
  assert plain[1:] == ["2", "6", "6", "1.00", "-", "2"]
  # 6 tokens in 4 calls; 3 of 6 tested tokens are accepted.
  assert spec[1:] == ["2", "6", "4", "1.50", "0.50", "1"]
  # Every decode of an input counts.
  assert decodes[1:] == ["1", "3", "3", "1.00", "1.00", "1"]
  assert single[-1] == "-"  # One output of an input, beside two.


@pytest.mark.parametrize(
  ("folders", "message"),
  [
    (["nowhere"], r"nowhere: expected the INFER_OUTPUT_DIR of one finished run"),
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
