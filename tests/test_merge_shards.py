"""The files of sharded runs are merged into the file of a single job."""

import json
import subprocess
import sys

import pytest

from specdec_t5x.merge_shards import merge_shards

STEM = "task-predict.jsonl"
WHOLE = f"{STEM}-00000-of-00001"


def name(shard, shards=3):
  return f"{STEM}-{shard:05}-of-{shards:05}"


def write_shards(directory, lines, shards=3):
  """Writes line i to shard i mod `shards`, like jobs over a one-file source."""
  for i in range(shards):
    (directory / name(i, shards)).write_text("".join(lines[i::shards]))
    (directory / f"{name(i, shards)}.COMPLETED").write_text("")


def numbered(count):
  return [f'{{"line": {i}}}\n' for i in range(count)]


@pytest.mark.parametrize("count", [3, 10, 11, 12])
def test_merged_lines_have_the_input_s_order(tmp_path, count):
  write_shards(tmp_path, numbered(count))
  assert merge_shards(tmp_path) == [tmp_path / WHOLE]
  assert (tmp_path / WHOLE).read_text() == "".join(numbered(count))
  record = json.loads((tmp_path / f"{WHOLE}.COMPLETED").read_text())
  assert record["bytes"] == (tmp_path / WHOLE).stat().st_size
  assert not list(tmp_path.glob("*.partial"))


def remove(path):
  path.unlink()


def lose_a_line(path):
  path.write_text("".join(path.read_text().splitlines(keepends=True)[:-1]))


@pytest.mark.parametrize(
  ("shard", "damage", "message"),
  [
    (name(1), remove, "jsonl-00001-of-00003, found no such file.*shard_id=1"),
    (f"{name(2)}.COMPLETED", remove, "without .COMPLETED.*num_shards=3.*shard_id=2"),
    (name(0), lose_a_line, r"\[3, 4, 3\] lines.*would be \[4, 3, 3\].*file by file"),
    (name(1), lambda path: path.write_text("{"), "00001-of-00003 is damaged"),
    (f"{name(1)}.COMPLETED", lambda path: path.write_text('{"bytes": 1}'), "damaged"),
    (WHOLE, lambda path: path.write_text("kept"), "already exists.*Remove "),
    (name(0, 2), lambda path: path.write_text(""), r"found \[2, 3\]"),
  ],
)
def test_incomplete_or_damaged_shards_are_refused(tmp_path, shard, damage, message):
  write_shards(tmp_path, numbered(11))
  damage(tmp_path / shard)
  before = {path: path.read_text() for path in tmp_path.iterdir()}
  with pytest.raises(ValueError, match=message):
    merge_shards(tmp_path)
  assert {path: path.read_text() for path in tmp_path.iterdir()} == before


def test_the_command_reports_a_failure_in_one_line(tmp_path):
  command = [sys.executable, "-m", "specdec_t5x.merge_shards", str(tmp_path)]
  process = subprocess.run(command, capture_output=True, text=True, check=False)
  assert process.returncode == 1
  assert process.stderr.startswith("specdec_t5x.merge_shards: ")
  assert "expected files" in process.stderr
  assert process.stderr.count("\n") == 1
