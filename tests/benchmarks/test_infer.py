"""The comparison of `t5x.infer` with and without speculation."""

import contextlib
import resource
import subprocess
import sys
from types import SimpleNamespace

import pytest
import t5x

from benchmarks import infer
from tests import commands
from tests.benchmarks.conftest import ran
from tests.e2e import runs
from tests.t5x_bridge import tiny

pytestmark = pytest.mark.slow


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
