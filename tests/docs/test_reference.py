"""The site's pages on gin files and docstrings."""

import sys

from tests.real_data import ROOT

sys.path.append(str(ROOT / "docs"))
import docstrings
import gin_reference
import pytest
import signatures
from gin_reference import Knob


def test_knobs_are_macros_above_the_wiring_with_their_comments(tmp_path):
  path = tmp_path / "runs" / "a.gin"
  path.parent.mkdir()
  path.write_text(
    "# What it is.\n#\n#   a command\nfrom x import y\n\n"
    "GIVEN = %gin.REQUIRED\nONE = 'a # b'   # of two\n                # lines\n"
    "y.f.g = 3\n# ---- Wiring ----\nHIDDEN = 1\n"
  )
  file = gin_reference.read(path, tmp_path)
  assert file.path == "runs/a.gin"
  assert file.knobs == (
    Knob("GIVEN", "REQUIRED", ""),
    Knob("ONE", "'a # b'", "of two lines"),
  )
  page = gin_reference.to_markdown(tmp_path)
  assert "| `ONE` | `'a # b'` | of two lines |" in page
  assert "What it is.\n\n```text\n  a command\n```" in page


def test_signatures_show_only_a_caller_s_arguments():
  flax = "parent: None | _Sentinel = <_Sentinel object>, name: str | None = None"
  shown = f"(size: int, {flax}, _kept: dict = <factory>)"
  assert signatures.process(*[None] * 5, shown, "None") == ("(size: int)", "None")
  assert signatures.process(*[None] * 5, None, None) == (None, None)


def test_sections_and_arguments_are_unchanged():
  lines = ["Text:", "", "  a = b_", "", "Args:", "  **knobs: a * b."]
  assert docstrings.rewritten(lines) == [
    *("Text:", "", "::", "", "  a = b_", "", "Args:", "  **knobs: a * b.")
  ]


@pytest.mark.parametrize(
  ("text", "default", "comment"),
  [
    (
      "PATHS = {\n    'a': %A,  # one\n    'b': ('x', 'y'),\n}",
      "{'a': %A, 'b': ('x', 'y')}",
      "",
    ),
    ("SHAPE = (\n    1,\n    2,\n)\nOTHER = 3  # else", "(1, 2)", ""),
    ("NAME = 'a {'  # open: (\nOTHER = 3", "'a {'", "open: ("),
    ("LIST = [1, 2]  # both\n        # and more", "[1, 2]", "both and more"),
  ],
)
def test_a_value_of_several_lines_is_complete(tmp_path, text, default, comment):
  (tmp_path / "x.gin").write_text(f"# About.\n\n{text}\n")
  knobs = gin_reference.read(tmp_path / "x.gin", tmp_path).knobs
  assert (knobs[0].default, knobs[0].comment) == (default, comment)
  assert len(knobs) == 1 + text.count("OTHER")
