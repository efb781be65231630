"""Reading the user's files: what comes out, and what each error says."""

import csv
import gzip
import json

import pytest

from specdec_t5x.data import text_files


def test_only_line_endings_and_bom_are_taken_off(write):
  path = write("a.txt", b"\xef\xbb\xbf a \r\nb\xc2\x85c\rd\n\n\xe2\x80\xa8d\t")
  assert text_files.read_lines(path) == [" a ", "b\x85c\rd", "", "\u2028d\t"]


def test_last_line_counts_once_with_and_without_newline(write):
  assert text_files.read_lines(write("a", "x\ny\n")) == ["x", "y"]
  assert text_files.read_lines(write("b", "x\ny")) == ["x", "y"]


def test_unknown_targets_are_empty(write):
  path = write("a", "x\ny\n")
  assert text_files.read_parallel(path, None) == (["x", "y"], ["", ""])


def test_unequal_line_counts_names_both(write):
  source, target = write("a", "x\ny\nz\n"), write("b", "x\ny\n")
  with pytest.raises(ValueError, match=r"a has 3 lines and .*b has 2"):
    text_files.read_parallel(source, target)


@pytest.mark.parametrize("content", [b"", b"\n", b"\xef\xbb\xbf"])
def test_empty_file(write, content):
  with pytest.raises(ValueError, match="is empty"):
    text_files.read_lines(write("a", content))


def test_missing_file(tmp_path):
  with pytest.raises(ValueError, match=r"nowhere\.txt can't be read"):
    text_files.read_lines(str(tmp_path / "nowhere.txt"))


def test_bytes_that_are_not_utf8_say_line_and_column(write):
  path = write("a", b"fine\nGr\xfc\xdfe\n")
  with pytest.raises(ValueError, match="line 2: byte 0xfc at column 3"):
    text_files.read_lines(path)


def test_jsonl_and_csv_give_the_same_records(write):
  rows = [{"a": 'x, "quoted"\nnext', "b": "1"}, {"a": "ä", "b": "2\r\n"}]
  jsonl = write("r.jsonl", "\n".join(map(json.dumps, rows)) + "\n\n")
  expected = [rows[0], {"a": "ä", "b": "2"}]
  assert text_files.read_fields(jsonl, ["a"], ["b", "c"]) == expected
  table = 'a,b\r\n"x, ""quoted""\nnext",1\r\nä,"2\r\n"\r\n'
  assert text_files.read_fields(write("r.csv", table), ["a"], ["b"]) == expected


def test_gzip_files_and_kept_line_ends(write):
  lines = json.dumps({"a": "x\n"}) + "\n"
  path = write("r.jsonl.gz", gzip.compress(lines.encode()))
  assert text_files.read_fields(path, ["a"]) == [{"a": "x"}]
  assert text_files.read_fields(path, ["a"], keep_line_ends=True) == [{"a": "x\n"}]
  for content in (b'{"a": "x"}', gzip.compress(lines.encode())[:-12]):
    with pytest.raises(ValueError, match=r"r\.jsonl\.gz can't be decompressed"):
      text_files.read_fields(write("r.jsonl.gz", content), ["a"])


def test_long_csv_field_and_the_limit_is_restored(write):
  csv.field_size_limit(131_072)
  path = write("long.csv", "a\n" + "x" * 300_000 + "\n")
  assert len(text_files.read_fields(path, ["a"])[0]["a"]) == 300_000
  assert csv.field_size_limit() == 131_072


@pytest.mark.parametrize(
  ("name", "content", "message"),
  [
    ("r.jsonl", '{"a": "x"}\n{"a": \n', "line 2: malformed JSON"),
    ("r.jsonl", '{"a": "x"}\n\n{"a": "x"}\n', "line 2: malformed JSON"),
    ("r.jsonl", '["a"]\n', "line 1: got a JSON list"),
    ("r.jsonl", '{"a": "x"}\n{"b": "x", "c": 1}\n', "line 2: no field 'a'.*'b', 'c'"),
    ("r.jsonl", '{"a": 3}\n', "line 1: field 'a' is int 3"),
    ("r.jsonl", '{"a": "\\ud800"}\n', "half of a surrogate pair"),
    ("r.csv", "b,c\n1,2\n", "line 2: no field 'a'.*'b', 'c'"),
    ("r.csv", "a,b\n1\n", "line 2: expected 2 fields"),
    ("r.csv", "a,b\n1,2,3\n", "line 2: expected 2 fields"),
    ("r.csv", "a,a\n1,2\n", "names a field twice"),
    ("r.csv", 'a\n"x" y\n', "malformed CSV"),
    ("r.csv", "a,b\n", "holds no record"),
    ("r.tsv", "a\tb\n", "expected .jsonl or .csv"),
  ],
)
def test_bad_records(write, name, content, message):
  with pytest.raises(ValueError, match=message):
    text_files.read_fields(write(name, content), ["a"])
