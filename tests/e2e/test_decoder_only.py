"""`python -m t5x.infer` with decoder-only networks, on checkpoints the test makes."""

import pytest

from specdec_t5x import api
from tests.e2e import runs
from tests.t5x_bridge import tiny, tiny_gpt

PAIR = """
from __gin__ import dynamic_registration
from specdec_t5x.data import language_modeling
from specdec_t5x.network import config

config.GptConfig:
  vocab_size = 64
  head_dim = 8
  mlp_activations = ('gelu', 'linear')
target/config.GptConfig:
  emb_dim = 16
  mlp_dim = 32
  num_heads = 2
  num_layers = 2
draft/config.GptConfig:
  emb_dim = 8
  mlp_dim = 16
  num_heads = 2
  num_layers = 1

MIXTURE_OR_TASK_NAME = @language_modeling.language_modeling_from_files()
language_modeling.language_modeling_from_files:
  name = 'tiny_lm'
  files = {{'test': '{text}'}}
  vocabulary = %VOCABULARY
  prompt_words = %PROMPT_WORDS
TASK_FEATURE_LENGTHS = {{'inputs': 20, 'targets': 12}}
VOCABULARY_PATH = '{vocabulary}'
VOCABULARY_EXTRA_IDS = 0
TARGET_CHECKPOINT_PATH = '{target}'
BATCH_SIZE = 8
"""
EXAMPLES = 20


@pytest.fixture(scope="session")
def pair(tmp_path_factory):
  """The gin file of a tiny pair and the draft's checkpoint."""
  root = tmp_path_factory.mktemp("decoder_only")
  text = root / "text.en"
  text.write_text("\n".join(tiny.sentences(EXAMPLES, seed=5)) + "\n")
  gin_file = root / "pair.gin"
  gin_file.write_text(
    PAIR.format(
      text=text,
      vocabulary=tiny.train_vocabulary(root),
      target=tiny.save_t5x(root / "target", tiny_gpt.TARGET, seed=1),
    )
  )
  return gin_file, tiny.save_t5x(root / "draft", tiny_gpt.DRAFT, seed=2)


def test_speculation_writes_the_plain_models_tokens(pair, tmp_path):
  gin_file, draft = pair
  runs.completed(
    *("configs/spec_lm.gin", gin_file),
    DRAFT_CHECKPOINT_PATH=draft,
    INFER_OUTPUT_DIR=str(tmp_path / "spec"),
    GAMMA=3,
    PROMPT_WORDS=1,
  )
  tokens = runs.tokens(tmp_path / "spec")
  checkpoint = str(gin_file.parent / "target" / "checkpoint_7")
  prompts = [text.split()[0] for text in tiny.sentences(EXAMPLES, seed=5)]
  plain = api.generate(
    prompts,
    api.load_model(checkpoint),
    None,
    str(gin_file.parent / "tiny.model"),
    max_length=12,
    batch_size=8,
  )
  assert tokens == [output.tokens for output in plain]
  assert len(tokens) == EXAMPLES
  assert len({tuple(row) for row in tokens}) > 1
  summary = runs.summary(tmp_path / "spec")
  assert summary["guarantee"] == "EXACT"
  assert summary["statistics"]["examples"] == EXAMPLES
  assert summary["decoder"]["drafter"]["network"]["kind"] == "GptTransformer"
  for record in runs.records(tmp_path / "spec"):
    assert record["aux"]["tokens"] == len(record["prediction_tokens"]) <= 12
    assert len(record["inputs"]["inputs_pretokenized"].split()) == 1


@pytest.mark.parametrize(
  ("gin_files", "drafts"),
  [
    (["configs/baseline_lm.gin"], False),
    (["configs/spec_lm.gin", "configs/drafters/tree.gin"], True),
    (["configs/spec_lm.gin", "configs/drafters/copy.gin"], False),
  ],
)
def test_other_ways_write_them_too(pair, tmp_path, gin_files, drafts):
  (config, *more), (gin_file, draft) = gin_files, pair
  settings = {"DRAFT_CHECKPOINT_PATH": draft} if drafts else {}
  run = lambda folder, config, *more, **settings: runs.completed(
    *(config, gin_file, *more),
    INFER_OUTPUT_DIR=str(tmp_path / folder),
    PROMPT_WORDS=1,
    **settings,
  )
  run("spec", "configs/spec_lm.gin", DRAFT_CHECKPOINT_PATH=draft)
  run("other", config, *more, **settings)
  assert runs.tokens(tmp_path / "other") == runs.tokens(tmp_path / "spec")
