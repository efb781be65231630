"""Saved traces, and traces as an HTML page."""

import html.parser
import pathlib
import re

import pytest

from specdec_t5x.trace import page, recording
from tests.trace import browser
from tests.trace.conftest import SAMPLED, SETTINGS, TEXT

KEPT = pathlib.Path(__file__).with_name("drawn.jsonl")
(DRAWN,) = recording.load(str(KEPT))


def test_saved_traces_are_loaded_unchanged(tmp_path):
  path = tmp_path / "traces.jsonl"
  recording.save([DRAWN, DRAWN], str(path))
  assert path.read_text() == 2 * KEPT.read_text()
  assert recording.load(str(path)) == [DRAWN, DRAWN]


@pytest.mark.parametrize("line", ["{", "[]", '{"text": "a"}', '{"turns": [{}]}'])
def test_an_invalid_line_is_named(line, tmp_path):
  path = tmp_path / "traces.jsonl"
  recording.save([DRAWN], str(path))
  path.write_text(path.read_text() + line + "\n")
  with pytest.raises(ValueError, match=r"traces\.jsonl, line 2: expected a trace"):
    recording.load(str(path))


def test_recorded_uniforms_and_ratios_explain_acceptance(sampled):
  drafted = [t for trace in sampled for turn in trace.turns for t in turn.drafted]
  tested = [token for token in drafted if token.kind != "discarded"]
  assert {token.kind for token in tested} == {"accepted", "rejected"}
  for token in tested:
    assert (token.test < token.p / token.q) == (token.kind == "accepted")
    assert token.draws
  assert all(trace.plain_seconds > 0 for trace in sampled)
  assert all(turn.target_seconds > 0 for trace in sampled for turn in trace.turns)


def test_greedy_traces_have_no_draws(greedy):
  (trace,) = greedy
  tokens = [t for turn in trace.turns for t in (*turn.drafted, turn.own) if t]
  assert all(t.q is None and t.test is None and not t.draws for t in tokens)
  assert all(0 < t.p <= 1 for t in tokens)


def test_tokens_of_a_tree_have_parents(models, vocabulary):
  settings = {"rule": "traversal", "num_candidates": 2, **SETTINGS, **SAMPLED}
  (trace,) = recording.record([TEXT], *models, vocabulary, **settings)
  first = trace.turns[0]
  for turn in trace.turns:
    is_cut = any(token.kind == "rejected" for token in turn.drafted)
    assert turn.own is None or (turn.own.kind == "recovered") == is_cut
  assert sum(token.parent == 0 for token in first.drafted) == 2
  stand = {n for n, t in enumerate(first.drafted, 1) if t.kind == "accepted"}
  assert first.own is None or first.own.parent == max(stand, default=0)


class Elements(html.parser.HTMLParser):
  def __init__(self, text):
    super().__init__()
    self.tags = []
    self.feed(text)

  def handle_starttag(self, tag, attributes):
    self.tags.append((tag, dict(attributes)))


def test_every_token_is_a_labelled_button():
  text = page.to_html([DRAWN])
  tags = Elements(text).tags
  labels = [a["aria-label"] for tag, a in tags if tag == "button" and "aria-label" in a]
  assert labels == [
    "ein, accepted, p 0.5, q 0.25, tested with u 0.125, drawn with u 0.750",
    "<Hund>, rejected, p 0.1, q 0.4, tested with u 0.500, drawn with u 0.250",
    "., discarded, p 0.2, q 0.3, tested with u 0.900, drawn with u 0.500",
    "Mann, recovered, p 0.6, drawn with u 0.500",
    "spielt, accepted, p 0.9",
    "., bonus, p 0.8",
  ]
  assert "<b>input" not in text
  assert "6 calls" not in text
  assert "4 tokens in 2 calls of the target; 2 of 4 drafted tokens stand." in text


def test_the_time_line_is_to_scale():
  bars = [a for tag, a in Elements(page.to_html([DRAWN])).tags if tag == "rect"]
  widths = {kind: [] for kind in ("draft", "target", "plain")}
  for bar in bars:
    widths[bar["class"]].append(float(bar["width"]))
  assert [round(w + 0.6) for w in widths["plain"]] == [250] * 4  # The width is 14 ms.
  assert [round(w + 0.6) for w in widths["target"]] == [286, 214]
  assert round(widths["draft"][0] + 0.6) == 143


def test_the_page_needs_no_files_and_no_network():
  text = page.to_html([DRAWN])
  assert not re.search(r"(src|href)=|url\(|https?:|@import", text)
  with pytest.raises(ValueError, match="at least 1 trace"):
    page.to_html([])


@browser.needed
def test_keys_move_between_tokens_and_themes_change(tmp_path):
  assert browser.run_script(page.to_html([DRAWN]), "press.js", tmp_path) == {
    "right": True,
    "shown": "block",
    "hidden": "none",
    "down": True,
    "start": True,
    "light": "rgb(255, 255, 255)",
    "dark": "rgb(13, 17, 23)",
  }
