"""The Multi30k pair that upstream T5X trained: our runs against upstream's outputs.

All 1,000 lines, under both providers: docs/results/correctness.md.
"""

import json

from tests import real_data
from tests.e2e import runs

LINES = 64
GIN = """
from __gin__ import dynamic_registration
from specdec_t5x.data import tasks
include 'configs/pairs/m30k.gin'

MIXTURE_OR_TASK_NAME = @tasks.translation_from_files()
tasks.translation_from_files:
  name = 'multi30k'
  files = {{'test': ('{source}', None)}}
  vocabulary = %VOCABULARY
TASK_FEATURE_LENGTHS = {{'inputs': 64, 'targets': 64}}
VOCABULARY_PATH = '{vocabulary}'
VOCABULARY_EXTRA_IDS = 0
TARGET_CHECKPOINT_PATH = '{target}'
DRAFT_CHECKPOINT_PATH = '{draft}'
"""


def test_tokens_are_upstreams_greedy_ones(tmp_path):
  lines = real_data.path("multi30k", "test_2016_flickr.en").read_text().split("\n")
  source = tmp_path / "source.en"
  source.write_text("\n".join(lines[:LINES]) + "\n")
  gin_file = tmp_path / "m30k.gin"
  gin_file.write_text(
    GIN.format(
      source=source,
      vocabulary=real_data.path("multi30k", "m30k_8k.model"),
      target=real_data.path("t5x_m30k", "target_checkpoint_2000"),
      draft=real_data.path("t5x_m30k", "draft_checkpoint_1800"),
    )
  )
  runs.completed(
    *("configs/spec_ende.gin", gin_file),
    INFER_OUTPUT_DIR=str(tmp_path / "out"),
    GAMMA=7,
    BATCH_SIZE=16,
  )
  reference = real_data.path(
    "t5x_m30k", "upstream_outputs", "test_2016_greedy_target.jsonl"
  )
  expected = [json.loads(line) for line in reference.read_text().splitlines()[:LINES]]
  assert runs.tokens(tmp_path / "out") == [r["prediction_tokens"] for r in expected]
  alpha = runs.summary(tmp_path / "out")["statistics"]["alpha_by_counts"]["value"]
  assert 0.6 < alpha < 0.75
