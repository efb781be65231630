"""Folders of T5Gemmas in `python -m t5x.infer`; test_infer_generation.py has T5s."""

import dataclasses

import pytest

import specdec_t5x
from lab.peers import hf_folder
from specdec_t5x.network.gemma import GemmaConfig
from tests import networks
from tests.contract.conftest import runtime_only
from tests.e2e import runs
from tests.t5x_bridge import tiny

pytestmark = pytest.mark.slow

FOLDERS = "configs/pairs/hugging_face.gin"
SPECULATIVE = "configs/spec_ende.gin"
PLAIN = "configs/baseline_ende.gin"
COUNT = 8
ROOM = 12


GEMMA = GemmaConfig(
  **{"vocab_size": tiny.VOCAB_SIZE, "emb_dim": 16, "num_heads": 2, "head_dim": 8},
  **{"mlp_dim": 32, "num_encoder_layers": 1, "num_decoder_layers": 2, "window": 3},
)
FIRST = dataclasses.replace(GEMMA, merged=False, encoder=GEMMA, attention_cap=2.0)


@pytest.fixture(scope="module")
def pair(tmp_path_factory):
  """Writes the folders of a pair and a gin file.

  Returns:
    The root folder and the texts.
  """
  root = tmp_path_factory.mktemp("theirs")
  pieces = tiny.train_vocabulary(root)
  texts = tiny.sentences(COUNT, seed=5)
  (root / "text.en").write_text("\n".join(texts) + "\n")
  paths = {}
  for seed, (name, config) in enumerate({"target": FIRST, "draft": GEMMA}.items()):
    folder = str(root / name)
    params = networks.drawn(config, seed)
    hf_folder.write(folder, config, params, vocabulary=str(pieces))
    paths[f"{name.upper()}_CHECKPOINT_PATH"] = folder
  knobs = {"BATCH_SIZE": COUNT, "GAMMA": 3}
  text = root / "text.en"
  task = runs.translation("theirs", text, pieces, 40, ROOM, **paths, **knobs)
  # The vocabulary comes from the folder.
  lines = [x for x in task.splitlines() if not x.startswith("VOCABULARY_")]
  lines = ["from __gin__ import dynamic_registration", *lines]
  (root / "theirs.gin").write_text("\n".join(lines) + "\n")
  return root, texts


def test_folders_decode_with_and_without_speculation(pair, tmp_path):
  root, _ = pair
  for name, file in (("ours", SPECULATIVE), ("plain", PLAIN)):
    output = str(tmp_path / name)
    runs.completed(file, FOLDERS, f"{root}/theirs.gin", INFER_OUTPUT_DIR=output)
  tokens = runs.tokens(tmp_path / "ours")
  assert tokens == runs.tokens(tmp_path / "plain")
  assert len({str(row) for row in tokens}) > 1


@runtime_only
def test_folders_can_be_decoded_with_rounded_weights(pair, tmp_path):
  root, texts = pair
  files = PLAIN, FOLDERS, f"{root}/theirs.gin"
  runs.completed(*files, WEIGHTS="int8", INFER_OUTPUT_DIR=str(tmp_path))
  target = specdec_t5x.load_model(f"{root}/target", weights="int8")
  prefixed = [f"translate English to German: {text}" for text in texts]
  outputs = specdec_t5x.generate(
    prefixed, target, None, f"{root}/target", max_length=ROOM
  )
  assert [output.tokens for output in outputs] == runs.tokens(tmp_path)
