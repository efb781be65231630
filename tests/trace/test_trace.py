"""Traces of decodes of a tiny random pair, and drawings of traces."""

import itertools
import pathlib
import runpy
import xml.etree.ElementTree as ET

import pytest

import specdec_t5x
from specdec_t5x.trace import recording, render
from specdec_t5x.trace.recording import Token, Trace, Turn
from specdec_t5x.vocabularies.opening import open_vocabulary
from tests.t5x_bridge import tiny
from tests.trace.conftest import SAMPLED, SETTINGS, TEXT

SCRIPT = pathlib.Path(__file__).parents[2] / "scripts" / "show_trace.py"


def drawn(own=None, **drafted):
  """Returns an iteration from the target's piece and drafted pieces by outcome."""
  kind = "recovered" if "rejected" in drafted else "bonus"
  own = own and Token(own, kind, 0.5)
  tokens = (Token(x, kind, 0.5) for kind, pieces in drafted.items() for x in pieces)
  return Turn(tuple(tokens), own, 0.0, 0.0)


DRAWN = (
  drawn(
    "▁Mann", accepted=["▁ein", "<&>"], rejected=["▁Hund"], discarded=["▁bellt", "."]
  ),
  drawn(".", accepted=["▁spielt"]),
  drawn(accepted=["</s>"]),
)


def image(title, turns=DRAWN, plain=0.002):
  return render.to_svg(Trace("input", "output", {}, turns, plain), title)


def generated(models, vocabulary, **settings):
  """Returns pieces and output of `generate` for TEXT, in a batch with another input."""
  settings = {"policy": "fixed", "batch_size": 2, **SETTINGS, **settings}
  outputs = specdec_t5x.generate([TEXT, "the dog"], *models, vocabulary, **settings)
  found = open_vocabulary(vocabulary)
  pieces = [recording.piece_of(found, token) for token in outputs[0].tokens]
  return pieces, outputs[0]


@pytest.mark.parametrize(("name", "settings"), [("greedy", {}), ("sampled", SAMPLED)])
def test_the_iterations_add_up_to_the_output_of_generate(
  name, settings, models, vocabulary, request
):
  turns = request.getfixturevalue(name)[0].turns
  expected, generation = generated(models, vocabulary, **settings)
  assert list(itertools.chain(*(turn.output for turn in turns))) == expected
  assert len(turns) == generation.target_calls
  assert sum(len(of_kind(turn, "accepted")) for turn in turns) == generation.accepted
  assert sum(len(turn.drafted) for turn in turns) == generation.drafted


def of_kind(turn, kind):
  return [token.piece for token in turn.drafted if token.kind == kind]


def test_rejected_tokens_are_replaced(sampled):
  turns = [turn for trace in sampled for turn in trace.turns]
  rejecting = [turn for turn in turns if of_kind(turn, "rejected")]
  assert rejecting
  for turn in rejecting:
    assert of_kind(turn, "rejected") != [turn.own.piece]
    assert turn.own.kind == "recovered"


def test_the_target_as_draft_is_never_rejected_and_compiles_once(
  models, vocabulary, monkeypatch
):
  traced = []
  verify = recording.verify

  def count(*args):
    return traced.append(args) or verify(*args)

  monkeypatch.setattr(recording, "verify", count)
  target = models[0]
  settings = {**SETTINGS, **SAMPLED}
  (trace,) = recording.record([TEXT], target, target, vocabulary, **settings)
  assert len(trace.turns) > 1
  assert len(traced) == 1
  kinds = {token.kind for turn in trace.turns for token in turn.drafted}
  assert kinds == {"accepted"}
  assert all(turn.own.kind == "bonus" for turn in trace.turns[:-1])


def test_plain_text_marks_every_kind():
  assert render.to_plain(DRAWN).splitlines() == [
    "accepted [rejected] (discarded) {recovered} +bonus",
    "  1  ▁ein <&> [▁Hund] (▁bellt) (.) {▁Mann}",
    "  2  ▁spielt +.",
    "  3  </s>",
  ]


def test_a_terminal_shows_colours_and_ends_them():
  legend, first, *_ = render.to_ansi(DRAWN).splitlines()
  assert "\033[31;9mrejected\033[0m" in legend
  assert first == (
    "  1  \033[32m▁ein\033[0m \033[32m<&>\033[0m \033[31;9m▁Hund\033[0m "
    "\033[2m▁bellt\033[0m \033[2m.\033[0m \033[34m▁Mann\033[0m"
  )


def test_control_characters_are_replaced():
  turns = (drawn("\0", accepted=["\033[2J", "a\nb"]),)
  assert render.to_plain(turns).splitlines()[1:] == ["  1  �[2J a�b +�"]
  assert "\033" not in image("\033", turns)
  ET.fromstring(image("\0", turns))


def parse(svg):
  root = ET.fromstring(svg)

  def name(element):
    return element.tag.removeprefix("{http://www.w3.org/2000/svg}")

  return root, [(name(e), e) for e in root.iter()]


def test_the_image_has_every_token_with_the_style_of_its_kind():
  svg = image('A <title> & "more"')
  assert "href" not in svg  # The image refers to no file.
  assert "url(" not in svg
  _, elements = parse(svg)
  texts = [(e.get("class"), e.text) for name, e in elements if name == "text"]
  tokens = [t for t in texts if t[0] in render.STYLES and t[0] != t[1]]
  every = [token for turn in DRAWN for token in (*turn.drafted, turn.own) if token]
  assert tokens == [(token.kind, token.piece) for token in every]
  assert texts[0] == ("title", 'A <title> & "more"')
  assert [text for kind, text in texts if kind == "number"] == [
    *("1", "2", "3"),
    "0.0 ms with speculation, 12.0 ms without",
  ]
  bars = [e.get("class") for name, e in elements if name == "rect" and e.get("class")]
  assert bars == ["draft"] * 3 + ["target"] * 3 + ["plain"] * 6


@pytest.mark.parametrize(
  "title", ["short", "a title longer than any line of tokens " * 3]
)
def test_the_image_has_room_for_everything(title):
  root, elements = parse(image(title))
  width = float(root.get("width"))
  height = float(root.get("height"))
  for name, element in elements:
    if name == "rect":
      assert float(element.get("x")) + float(element.get("width")) <= width
      assert float(element.get("y")) + float(element.get("height")) <= height
    if name == "text" and element.get("textLength"):
      assert float(element.get("x")) + float(element.get("textLength")) <= width
      assert float(element.get("y")) <= height


def test_wide_characters_take_two_columns():
  assert image("二人", DRAWN[:1]).count('textLength="33.6"') >= 1


def test_the_script_prints_and_draws(tmp_path, capsys):
  main = runpy.run_path(str(SCRIPT))["main"]
  files = {"svg": tmp_path / "trace.svg", "record": tmp_path / "traces.jsonl"}
  pair = tiny.save_pair(tmp_path)
  flags = [f"--{name}={path}" for name, path in {**pair, **files}.items()]
  assert main(["--text", TEXT, "--gamma=3", *flags]) == 0
  printed = capsys.readouterr().out
  assert printed.startswith("accepted [rejected]")
  assert printed.rstrip().endswith("calls of the target")
  ET.parse(tmp_path / "trace.svg")
  again = [f"--run={tmp_path / 'traces.jsonl'}", f"--html={tmp_path / 'trace.html'}"]
  assert main(again) == 0
  assert capsys.readouterr().out == printed
  assert TEXT in (tmp_path / "trace.html").read_text()
