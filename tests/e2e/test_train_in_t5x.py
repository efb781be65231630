"""`python -m t5x.train` distils a draft, under upstream T5X."""

import json

import numpy as np
import pytest

from specdec_t5x.checkpoints.checkpoint import Checkpoint
from tests.contract.conftest import IS_RUNTIME, runtime_only
from tests.e2e import runs


@runtime_only
@pytest.mark.slow
def test_the_runtime_names_our_trainer():
  process = runs.infer(module="t5x.train")
  assert process.returncode == 1
  assert "python -m specdec_t5x.train" in process.stderr


@pytest.mark.skipif(IS_RUNTIME, reason="the runtime has no trainer")
@pytest.mark.slow
def test_t5x_trains_a_draft_and_evaluates_it_by_decoding(pair, tmp_path):
  gin_file, draft = pair
  text = str(gin_file.parent / "text.en")
  task = runs.translation("t5x_train", text, gin_file.parent / "tiny.model")
  splits = f"{{'train': ({text!r}, {text!r}), 'validation': ({text!r}, {text!r})}}"
  task = task.replace(f"{{'test': ({text!r}, None)}}", splits)
  (tmp_path / "task.gin").write_text(task)
  runs.completed(
    *("configs/train/t5x_distill.gin", gin_file, tmp_path / "task.gin"),
    module="t5x.train",
    DRAFT_CHECKPOINT_PATH=draft,
    MODEL_DIR=str(tmp_path / "model"),
    **{"TRAIN_STEPS": 30, "PERIOD": 15, "WARMUP_STEPS": 5, "GAMMA": 3},
  )
  (file,) = (tmp_path / "model/inference_eval").glob("*metrics.jsonl")
  first, last = map(json.loads, file.read_text().splitlines())
  assert first["bleu"] == last["bleu"]  # The target's, whatever the draft.
  assert last["alpha_by_counts"] > first["alpha_by_counts"]
  trained = Checkpoint.open(str(tmp_path / "model/draft/checkpoint_30"))
  network = trained.network()
  before = Checkpoint.open(draft).load(network)["decoder"]["logits_dense"]["kernel"]
  after = trained.load(network)["decoder"]["logits_dense"]["kernel"]
  assert np.abs(after - before).max() > 0.01
