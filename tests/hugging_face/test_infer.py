"""Hugging Face folders in `python -m t5x.infer`, converted, and in `generate`."""

import dataclasses

import pytest

import specdec_t5x
from specdec_t5x import convert
from specdec_t5x.hugging_face import export
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
PAIRS = {"T5": (tiny.TARGET, tiny.DRAFT), "T5Gemma": (FIRST, GEMMA)}


@pytest.fixture(scope="module", params=["T5", "T5Gemma"])
def pair(tmp_path_factory, request):
  """Writes folders and checkpoints of a pair, gin files for folders and checkpoints.

  Returns:
    The root folder and the texts.
  """
  root = tmp_path_factory.mktemp("theirs")
  pieces = tiny.train_vocabulary(root)
  texts = tiny.sentences(COUNT, seed=5)
  (root / "text.en").write_text("\n".join(texts) + "\n")
  paths = {}
  for seed, (name, config) in enumerate(
    zip(("target", "draft"), PAIRS[request.param], strict=True)
  ):
    folder = str(root / name)
    export.write(folder, config, networks.drawn(config, seed), vocabulary=str(pieces))
    assert convert.main([f"--from={folder}", f"--to={root}/ours_{name}"]) == 0
    paths[f"{name.upper()}_CHECKPOINT_PATH"] = folder
  knobs = {"BATCH_SIZE": COUNT, "GAMMA": 3}
  name = f"theirs_{request.param}"  # A task name per pair.
  text = root / "text.en"
  task = runs.translation(name, text, pieces, 40, ROOM, **paths, **knobs)
  # The vocabulary comes from the folder.
  lines = [x for x in task.splitlines() if not x.startswith("VOCABULARY_")]
  lines = ["from __gin__ import dynamic_registration", *lines]
  (root / "theirs.gin").write_text("\n".join(lines) + "\n")
  ours = [x for x in lines if "_CHECKPOINT_PATH" not in x]
  (root / "ours.gin").write_text("\n".join(ours).replace("'theirs_", "'ours_") + "\n")
  return root, texts


def test_converted_networks_decode_like_their_folders(pair, tmp_path):
  """Speculative decoding of folders equals plain decoding of the converted target."""
  root, _ = pair
  theirs = SPECULATIVE, FOLDERS, f"{root}/theirs.gin"
  ours = PLAIN, f"{root}/ours_target/target.gin", f"{root}/ours.gin"
  for name, files in (("theirs", theirs), ("ours", ours)):
    runs.completed(*files, INFER_OUTPUT_DIR=str(tmp_path / name))
  tokens = runs.tokens(tmp_path / "theirs")
  assert tokens == runs.tokens(tmp_path / "ours")
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


@runtime_only
def test_a_different_feed_forward_layer_than_the_folder_s_is_refused(pair, tmp_path):
  root, _ = pair
  gin = tmp_path / "silu.gin"
  is_gemma = "GemmaConfig" in (root / "ours_target" / "target.gin").read_text()
  kind = "gemma.GemmaConfig" if is_gemma else "config.T5Config"
  gin.write_text(
    "from __gin__ import dynamic_registration\n"
    f"from specdec_t5x.network import {kind.split('.')[0]}\n"
    f"target/{kind}.mlp_activations = ('silu', 'linear')\n"
  )
  files = [f"{root}/ours_{name}/{name}.gin" for name in ("target", "draft")]
  with pytest.raises(SystemExit) as exit_:
    runs.completed(
      *(SPECULATIVE, *files, f"{root}/ours.gin", gin),
      TARGET_CHECKPOINT_PATH=f"{root}/target",
      INFER_OUTPUT_DIR=str(tmp_path / "out"),
    )
  assert "has the feed-forward layer ('gelu', 'linear')" in exit_.value.code
