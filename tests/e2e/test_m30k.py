"""The Multi30k pair trained with upstream T5X: our outputs against upstream's outputs.

docs/results/correctness.md has all 1,000 lines under both providers.
"""

import json

import pytest

from tests import real_data
from tests.e2e import runs

pytestmark = pytest.mark.slow

LINES = 32


def test_tokens_equal_upstream_s_greedy_tokens(tmp_path):
  lines = real_data.path("multi30k", "test_2016_flickr.en").read_text().split("\n")
  source = tmp_path / "source.en"
  source.write_text("\n".join(lines[:LINES]) + "\n")
  gin_file = tmp_path / "m30k.gin"

  def checkpoint(name):
    return str(real_data.path("t5x_m30k", name))

  settings = runs.translation(
    "multi30k",
    source,
    real_data.path("multi30k", "m30k_8k.model"),
    inputs=64,
    targets=64,
    TARGET_CHECKPOINT_PATH=checkpoint("target_checkpoint_2000"),
    DRAFT_CHECKPOINT_PATH=checkpoint("draft_checkpoint_1800"),
  )
  gin_file.write_text(
    "from __gin__ import dynamic_registration\n"
    f"include 'configs/pairs/m30k.gin'\n{settings}"
  )
  runs.completed(
    *("configs/spec_ende.gin", gin_file),
    INFER_OUTPUT_DIR=str(tmp_path / "out"),
    GAMMA=7,
    GAMMA_POLICY="fixed",
    BATCH_SIZE=16,
  )
  reference = real_data.path(
    "t5x_m30k", "upstream_outputs", "test_2016_greedy_target.jsonl"
  )
  expected = [json.loads(line) for line in reference.read_text().splitlines()[:LINES]]
  assert runs.tokens(tmp_path / "out") == [r["prediction_tokens"] for r in expected]
  alpha = runs.summary(tmp_path / "out")["statistics"]["alpha_by_counts"]["value"]
  assert 0.7 < alpha < 0.8
