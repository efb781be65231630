"""`python -m t5x.train` distils a draft under upstream T5X."""

import json
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import sentencepiece

from specdec_t5x.checkpoints.checkpoint import Checkpoint
from specdec_t5x.data.tasks import TRANSLATE_ENDE
from specdec_t5x.training.objectives import TokenDistillation
from tests import networks
from tests.contract.conftest import IS_RUNTIME, runtime_only
from tests.e2e import runs


@runtime_only
@pytest.mark.slow
def test_the_runtime_s_error_names_our_trainer():
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
    **{"TRAIN_STEPS": 60, "PERIOD": 30, "WARMUP_STEPS": 5, "GAMMA": 3},
  )
  (file,) = (tmp_path / "model/inference_eval").glob("*metrics.jsonl")
  first, last = map(json.loads, file.read_text().splitlines())
  assert first["bleu"] == last["bleu"]  # The outputs are the target's with any draft.
  # The two evaluations have different drafts.
  assert first["alpha_by_counts"] != last["alpha_by_counts"]
  steps = [draft, *(f"{tmp_path}/model/draft/checkpoint_{step}" for step in (30, 60))]
  before, after, last = (distance(path, gin_file) for path in steps)
  assert last < after < 0.9 * before


def distance(draft, gin_file):
  """Returns a draft's KL(p || q) per token on the pair's texts."""
  target = re.search("TARGET_CHECKPOINT_PATH = '(.*)'", gin_file.read_text())[1]
  (p, frozen), (q, params) = (loaded(path) for path in (target, draft))
  pieces = sentencepiece.SentencePieceProcessor(str(gin_file.parent / "tiny.model"))
  texts = (gin_file.parent / "text.en").read_text().splitlines()
  # Texts are repeated to a common length, so there is no padding.
  inputs, tokens = (
    jnp.array([np.resize(pieces.encode(start + text), length) for text in texts])
    for start, length in ((TRANSLATE_ENDE, 12), ("", 4))
  )
  batch = networks.forced(inputs, tokens)
  run = jax.jit(lambda params: TokenDistillation(p)(q, params, batch, frozen).losses)
  return float(run(params).mean())


def loaded(path):
  checkpoint = Checkpoint.open(path)
  return checkpoint.network(), checkpoint.load(checkpoint.network())
