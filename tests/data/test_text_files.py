"""Reading the user's files: results, and errors without a test of a command.

tests/errors/cases.toml has the remaining errors.
"""

import gzip
import json
import os

import pytest

from specdec_t5x.data import text_files


@pytest.mark.parametrize(
  ("content", "lines"),
  [
    (
      b"\xef\xbb\xbf a \r\nb\xc2\x85c\rd\n\n\xe2\x80\xa8d\t",
      [" a ", "b\x85c\rd", "", "\u2028d\t"],
    ),
    (b"x\ny\n", ["x", "y"]),
    (b"x\ny", ["x", "y"]),
  ],
)
def test_only_line_endings_and_bom_are_removed(write, content, lines):
  path = write("a.txt", content)
  assert text_files.read_lines(path) == lines


def test_jsonl_and_csv_give_the_same_records(write):
  rows = [{"a": 'x, "quoted"\nnext', "b": "1"}, {"a": "ä", "b": "2\n"}]
  jsonl = write("r.jsonl", "\n".join(map(json.dumps, rows)) + "\n\n")
  assert text_files.read_fields(jsonl, ["a", "b"]) == rows
  table = 'a,b\r\n"x, ""quoted""\nnext",1\r\nä,"2\r\n"\r\n'
  assert text_files.read_fields(write("r.csv", table), ["a", "b"]) == rows


def test_gzip_files_and_long_fields(write):
  lines = json.dumps({"a": "x"}) + "\n"
  path = write("r.jsonl.gz", gzip.compress(lines.encode(), mtime=0))
  assert text_files.read_fields(path, ["a"]) == [{"a": "x"}]
  path = write("long.csv", "a\n" + "x" * 300_000 + "\n")
  assert len(text_files.read_fields(path, ["a"])[0]["a"]) == 300_000


def test_a_pipe_is_refused(tmp_path):
  os.mkfifo(tmp_path / "a")
  with pytest.raises(ValueError, match="a can't be read: the path is not a regular"):
    text_files.read_lines(str(tmp_path / "a"))


@pytest.mark.parametrize(
  ("name", "content", "message"),
  [
    ("r.jsonl", '["a"]\n', "line 1: got a JSON list"),
    ("r.jsonl", '{"a": "\\ud800"}\n', "half of a surrogate pair"),
    ("r.csv", "a,a\n1,2\n", "names a field twice"),
    ("r.csv", 'a\n"x" y\n', "malformed CSV"),
    ("r.csv", "a,b\n", "must hold at least 1 record"),
    (
      "r.jsonl.gz",
      gzip.compress(b'{"a": "x"}', mtime=0)[:-12],
      "can't be decompressed",
    ),
  ],
)
def test_bad_records(write, name, content, message):
  with pytest.raises(ValueError, match=message):
    text_files.read_fields(write(name, content), ["a"])
