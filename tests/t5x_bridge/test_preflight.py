"""Checks before a run: what is wrong is said, and nothing is written over."""

import json

import pytest

from specdec_t5x.t5x_bridge import preflight
from specdec_t5x.t5x_bridge.writer import SUMMARY
from tests.t5x_bridge import tiny


def test_a_finished_run_is_not_taken_for_one_with_other_settings(tmp_path):
  settings = {"gamma": 3, "block_costs": (1.0, 1.5)}
  preflight.check_same_run(str(tmp_path), settings)
  (tmp_path / SUMMARY).write_text(json.dumps({"settings": settings}))
  preflight.check_same_run(str(tmp_path), settings)
  with pytest.raises(ValueError, match="gamma: 3 -> 4"):
    preflight.check_same_run(str(tmp_path), {**settings, "gamma": 4})


def test_an_output_directory_that_can_t_be_written_is_refused(tmp_path):
  preflight.check_writable(str(tmp_path / "new"))
  blocked = tmp_path / "file"
  blocked.write_text("in the way")
  with pytest.raises(ValueError, match=f"INFER_OUTPUT_DIR={blocked}"):
    preflight.check_writable(str(blocked / "out"))
  assert blocked.read_text() == "in the way"


def test_a_checkpoint_that_is_not_there_or_another_network_s_is_refused(
  vocabulary, tmp_path
):
  model = tiny.speculative(vocabulary)
  variables = preflight.abstract_variables(model, {"inputs": 8, "targets": 8})
  expected = preflight.expected_shapes(model, variables)
  with pytest.raises(ValueError, match="DRAFT_CHECKPOINT_PATH: missing is not"):
    preflight.check_checkpoint("DRAFT_CHECKPOINT_PATH", "missing", expected["draft"])
  path = tiny.save_t5x(tmp_path / "target", tiny.TARGET, seed=1)
  preflight.check_checkpoint("TARGET_CHECKPOINT_PATH", path, expected["target"])
  with pytest.raises(ValueError, match="token_embedder/embedding has shape"):
    preflight.check_checkpoint("DRAFT_CHECKPOINT_PATH", path, expected["draft"])
