"""A kill of a real process; docs/results/reliability.md has many."""

import pytest

from lab.stress import kills
from tests.contract.conftest import IS_RUNTIME
from tests.e2e import runs
from tests.t5x_bridge import tiny

EXAMPLES = 24


@pytest.fixture(scope="module")
def flags(tmp_path_factory):
  """The command's flags for a tiny pair that samples, in chunks of 8."""
  root = tmp_path_factory.mktemp("kills")
  gin_file = runs.tiny_pair(root, EXAMPLES)
  draft = tiny.save_t5x(root / "draft", tiny.DRAFT, seed=2)
  return [
    *("--gin_file=configs/spec_ende.gin", f"--gin_file={gin_file}"),
    f"--gin.DRAFT_CHECKPOINT_PATH={draft!r}",
    *("--gin.TEMPERATURE=1.0", "--gin.SEED=3", "--gin.GAMMA=3"),
    "--gin.infer.checkpoint_period=1",
  ]


def test_a_run_that_is_killed_while_it_writes_ends_as_if_it_had_not_been(
  flags, tmp_path
):
  killer, whole = kills.Killer(flags, tmp_path, seed=0), tmp_path / "whole"
  runs.completed(flags=flags, INFER_OUTPUT_DIR=str(whole))
  killer._whole = kills.Whole(whole, start_up=0.0, chunk=0.0)
  outcome = killer.run("killed", ["writing"])
  assert outcome.error is None
  assert outcome.kills
  assert (outcome.lines, outcome.missing, outcome.extra) == (EXAMPLES, 0, 0)
  assert outcome.identical
  assert outcome.same_statistics
  # Upstream T5X, killed after its last file, takes its chunks for removed.
  assert outcome.good or not IS_RUNTIME, outcome
