"""Comparisons of ways to decode on a tiny pair: the contents of the rows."""

import contextlib
import resource
import subprocess
import sys
from types import SimpleNamespace

import pytest
import t5x

from benchmarks import infer
from benchmarks.table import tables
from tests import commands
from tests.benchmarks.conftest import SHORT, named, ran
from tests.e2e import runs
from tests.t5x_bridge import tiny

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("draft", ["small", "quantized"])
def test_every_batch_gives_the_plain_outputs(draft, files, tmp_path, capsys):
  pair_flags = named(files, **({"draft": draft} if draft == "quantized" else {}))
  flags = "--gamma 3 --gammas 2 --max-length 8 --batches 2 --queue 2 --policies fixed"
  rows = ran("batches", tmp_path, *pair_flags, *flags.split())["rows"]
  names = ("plain", "gamma 2", "fixed")
  settings = [f"{name}{suffix}" for name in names for suffix in ("", ", read ahead")]
  assert [row["setting"] for row in rows] == settings
  assert {row["identical"] for row in rows} == {"3/3"}
  assert rows[0]["speed"]["median"] == rows[2]["over_best"]["median"] == 1
  assert rows[0]["drafted"] == 0 < rows[2]["drafted"] == rows[3]["drafted"]
  if draft == "quantized":  # The draft is nearly the target.
    two, three = (rows[i]["tokens_per_call"]["value"] for i in (2, 4))
    assert 2 < two < three
  assert "Fastest fixed length: gamma 2 at batch 2." in capsys.readouterr().out


RULES = {
  None: {"token", "block"},
  "independent": {"recursive", "kseq", "traversal"},
  "distinct": {"recursive", "traversal"},
}


def test_every_rule_of_a_shape_has_a_column(pair, tmp_path, capsys, monkeypatch):
  entry = tables("benchmarks")["rules"]
  shapes = [way for way in entry["ways"] if way["shape"] != "chain"]
  chain = {"of": ["first"], "shape": "chain", "gamma": 1, "rules": ["token", "block"]}
  monkeypatch.setitem(entry, "ways", [chain, *shapes[3:6]])
  flags = "--batches=2 --max-length=12 --num-inputs=3"
  rows = ran("rules", tmp_path, *pair, *flags.split())["rows"]
  assert [row["temperature"] for row in rows] == ["0"] * 2 + ["1"] * 3
  for row in rows:
    numbers = {name: x for name, x in row.items() if isinstance(x, dict)}
    expected = RULES[row["siblings"]] if row["temperature"] == "1" else {"greedy"}
    assert set(numbers) == expected
    for found in numbers.values():
      assert 1 <= found["value"] <= row["depth"] + 1
      assert found["low"] <= found["value"] <= found["high"]
  assert "| T |" in capsys.readouterr().out


@pytest.mark.usefixtures("steady_parts")
def test_every_domain_has_every_way_with_needs_and_costs(pair, tmp_path):
  (tmp_path / "others.txt").write_text("a red house\nthe old dog sees\n")
  flags = ["--draft=copy", f"--also=others={tmp_path / 'others.txt'}", *SHORT[2:]]
  flags += ["--temperatures=0", "--rules=0"]
  rows = ran("methods", tmp_path, *pair, *flags)["rows"]
  found = {}
  outputs = {"yours": "3/3", "others": "2/2"}
  for row in rows:
    way = tuple(row[name] for name in ("draft", "shape", "rule"))
    found.setdefault(row["domain"], []).append(way)
    if row["guarantee"] in ("EXACT", "GREEDY_EXACT"):
      assert row["identical"] == outputs[row["domain"]], row
    assert row["c"] >= 0
    assert row["milliseconds"] > 0
  assert list(found) == list(outputs)
  assert found["yours"] == found["others"]
  assert len(set(found["yours"])) == len(found["yours"])
  by = {(row["draft"], row["shape"]): row for row in rows}
  assert by["copy", "chain"]["parameters"] == "0.00M"
  assert by["copy", "chain"]["training"] == "none"
  assert by["small", "chain"]["training"] == "a draft model"
  assert by["target", "rounded to 8 bits"]["training"] == "none"
  assert by["small", "chain"]["tokens_per_call"]["value"] >= 1


# ---- t5x.infer with and without speculation. ----


def run_in_this_process(command, stdout, stderr, check):
  """Runs `python -m t5x.infer` like `subprocess.run`, without a new Python process."""
  assert command[:3] == [sys.executable, "-m", "t5x.infer"]
  with contextlib.redirect_stdout(stdout), contextlib.redirect_stderr(stderr):
    commands.infer(*command[3:])
  return subprocess.CompletedProcess(command, 0)


@pytest.mark.skipif(not hasattr(t5x, "PROVIDER"), reason="of t5x_runtime's command")
def test_the_user_s_command_is_compared_with_the_baseline(tmp_path, monkeypatch):
  monkeypatch.chdir(runs.ROOT)
  monkeypatch.setattr(infer, "subprocess", SimpleNamespace(run=run_in_this_process))
  monkeypatch.setattr(resource, "RUSAGE_CHILDREN", resource.RUSAGE_SELF)
  gin_file = runs.tiny_pair(tmp_path, 6)
  draft = tiny.save_t5x(tmp_path / "draft", tiny.DRAFT, seed=2)
  with gin_file.open("a") as file:
    file.write(f"DRAFT_CHECKPOINT_PATH = {draft!r}\n")
  flags = [f"--gin-file={gin_file}", "--batches=4", "--temperatures=0", "--runs=1"]
  (row,) = ran("infer", tmp_path / "out", *flags, "--gin=SEED=3")["rows"]
  assert row["equal"] == "6 of 6"
  assert row["tokens_per_call"] >= 1
  ratio = row["baseline_seconds"]["median"] / row["spec_seconds"]["median"]
  assert row["speed"]["median"] == pytest.approx(ratio)
