"""The user's command is run in turn with what it is compared with."""

import pytest

from tests.bench.conftest import ran
from tests.e2e import runs
from tests.t5x_bridge import tiny


def test_both_commands_run_and_are_compared(tmp_path):
  gin_file = runs.tiny_pair(tmp_path, 6)
  draft = tiny.save_t5x(tmp_path / "draft", tiny.DRAFT, seed=2)
  with gin_file.open("a") as file:
    file.write(f"DRAFT_CHECKPOINT_PATH = {draft!r}\n")
  flags = f"--gin-file={gin_file}", "--batches=4", "--temperatures=0", "--runs=1"
  (row,) = ran("infer", tmp_path / "out", *flags, "--gin=SEED=3")["rows"]
  assert row["equal"] == "6 of 6"
  assert row["tokens_per_call"] >= 1
  ratio = row["baseline_seconds"]["median"] / row["spec_seconds"]["median"]
  assert row["speed"]["median"] == pytest.approx(ratio)


def test_a_command_that_fails_says_why(tmp_path, capsys):
  with pytest.raises(AssertionError):
    ran("infer", tmp_path, "--gin-file=none.gin", "--batches=4", "--runs=1")
  assert "none.gin" in capsys.readouterr().err
