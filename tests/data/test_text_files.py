"""Reading the user's files: results, and errors without a test of a command.

tests/errors/cases.toml has the remaining errors.
"""

import gzip
import json
import os
import subprocess
import sys
import threading

import pytest

from specdec_t5x.data import text_files
from tests import processes


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


@pytest.mark.parametrize(
  ("name", "content"),
  [("a.gz", gzip.compress(b"x\ny")), ("a", b"x\n" * 100_000)],
  ids=["gzip", "many lines"],
)
def test_a_pipe_is_read_once(tmp_path, name, content):
  path = tmp_path / name
  os.mkfifo(path)
  thread = threading.Thread(target=path.write_bytes, args=[content])
  thread.start()
  for _ in range(2):  # A second read of the pipe would wait for ever.
    assert text_files.read_lines(str(path))[0] == "x"
  thread.join()


READS_STDIN = """
from specdec_t5x.data import text_files
first, second = (text_files.read_lines("/dev/stdin") for _ in range(2))
assert first == second == ["x", "y"], (first, second)
"""


def test_stdin_is_read_once(tmp_path):
  command = [sys.executable, "-c", READS_STDIN]
  settings = {"check": True, "env": processes.environment()}
  subprocess.run(command, input=b"x\ny\n", **settings)


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
