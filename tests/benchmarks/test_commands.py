"""Commands of the benchmark that a single run tests: the contents of the rows."""

import contextlib
import subprocess
import sys
import time
from types import SimpleNamespace

import pytest
import t5x

from benchmarks import infer, rules
from specdec_t5x.core.tree import chain, delayed
from specdec_t5x.native import library
from tests import commands
from tests.benchmarks.conftest import ran
from tests.e2e import runs
from tests.t5x_bridge import tiny

pytestmark = pytest.mark.slow


@pytest.mark.skipif(bool(library.problem()), reason="needs the kernels")
def test_a_certified_head_and_the_full_head_are_timed_and_agree(tmp_path):
  flags = "--vocab-size=4000 --width=64 --runs=3 --rows 1 3"
  rows = ran("head", tmp_path, *flags.split())["rows"]
  assert [row["rows"] for row in rows] == [1, 3]
  for row in rows:
    assert row["same"] == "True"
    assert 1 <= row["computed"] < 400
    assert row["speed"]["median"] > 0


RULES = {
  None: {"token", "block"},
  "independent": {"recursive", "kseq", "traversal"},
  "distinct": {"recursive", "traversal"},
}


def test_every_rule_of_a_shape_has_a_column(pair, tmp_path, capsys, monkeypatch):
  few_shapes = [("chain", chain(1)), ("2 candidates", delayed(0, 2, 1))]
  monkeypatch.setattr(rules, "shapes", lambda *sizes: few_shapes)
  flags = "--batch=2 --max-length=12 --num-inputs=3"
  rows = ran("rules", tmp_path, *pair, *flags.split())["rows"]
  greedy, sampled = ([r for r in rows if r["temperature"] == t] for t in "01")
  assert len(greedy) == 2
  assert len(sampled) == 1 + 2
  for row in rows:
    numbers = {name: x for name, x in row.items() if isinstance(x, dict)}
    expected = RULES[row["siblings"]] if row["temperature"] == "1" else {"greedy"}
    assert set(numbers) == expected
    for found in numbers.values():
      assert 1 <= found["value"] <= row["depth"] + 1
      assert found["low"] <= found["value"] <= found["high"]
  assert "| T |" in capsys.readouterr().out


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
  monkeypatch.setattr(infer, "_processor_seconds", time.process_time)
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
