"""A draft with a different vocabulary, from the command and from Python."""

import dataclasses

import numpy as np
import pytest

import specdec_t5x
from tests.e2e import runs
from tests.t5x_bridge import tiny

GIN_FILE = "configs/contrib/other_vocabulary.gin"
CONFIG = dataclasses.replace(tiny.DRAFT, vocab_size=24)


@pytest.fixture(scope="module")
def draft(tmp_path_factory):
  """Returns the draft's checkpoint and the draft's tokenizer."""
  root = tmp_path_factory.mktemp("other")
  tokenizer = tiny.train_vocabulary(root, size=22)
  return tiny.save(root / "draft", CONFIG, tiny.drawn(CONFIG)), tokenizer


def test_the_command_gives_the_target_s_outputs(draft, infer, speculative, tmp_path):
  sizes = tmp_path / "sizes.gin"
  sizes.write_text("draft/config.T5Config.vocab_size = 24\n")
  settings = {"DRAFT_CHECKPOINT_PATH": draft[0], "DRAFT_TOKENIZER": draft[1]}
  infer(tmp_path / "out", GIN_FILE, sizes, **settings)
  summary = runs.summary(tmp_path / "out")
  drafter = summary["decoder"]["drafter"]
  assert drafter["kind"] == "OtherVocabulary"
  assert drafter["tokens"].endswith("of 30 tokens")
  assert summary["guarantee"] == "EXACT"
  assert runs.tokens(tmp_path / "out") == runs.tokens(speculative)
  assert summary["statistics"]["drafted"] > 0


@pytest.mark.slow
def test_generate_gives_the_target_s_outputs(draft, pair):
  root = pair[0].parent
  target = specdec_t5x.load_model(str(root / "target" / "checkpoint_7"))
  texts = tiny.sentences(4, seed=4)
  vocabulary = str(root / "tiny.model")
  draft_model = specdec_t5x.load_model(draft[0])
  words = {"gamma": 3, "max_length": 10, "draft_tokenizer": draft[1]}
  speculative = specdec_t5x.generate(texts, target, draft_model, vocabulary, **words)
  plain = specdec_t5x.generate(texts, target, None, vocabulary, max_length=10)
  assert [x.tokens for x in speculative] == [x.tokens for x in plain]
  assert np.sum([x.drafted for x in speculative]) > 0
