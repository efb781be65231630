"""A tiny copy task over files, and a tiny network for it."""

import json

import pytest
import seqio

from specdec_t5x.data import tasks
from specdec_t5x.network.config import T5Config
from specdec_t5x.training.batches import TaskData
from tests.t5x_bridge import tiny

NETWORK = T5Config(
  vocab_size=32,
  emb_dim=32,
  num_heads=2,
  head_dim=16,
  mlp_dim=64,
  num_encoder_layers=1,
  num_decoder_layers=1,
  mlp_activations=("gelu", "linear"),
)


@pytest.fixture(scope="session")
def copy_files(tmp_path_factory):
  """(vocabulary, {split: JSONL file}); the targets repeat the inputs."""
  root = tmp_path_factory.mktemp("copy")
  files = {}
  # Enough for one epoch a test: each epoch builds its dataset, in about a second.
  for split, count, seed in (("train", 1500, 0), ("few", 60, 2), ("validation", 12, 1)):
    lines = [json.dumps({"x": s, "y": s}) for s in tiny.sentences(count, seed)]
    files[split] = str(root / f"{split}.jsonl")
    (root / f"{split}.jsonl").write_text("\n".join(lines) + "\n")
  vocabulary = seqio.SentencePieceVocabulary(tiny.train_vocabulary(root), extra_ids=0)
  return vocabulary, files


@pytest.fixture(scope="session")
def copy_task(copy_files):
  vocabulary, files = copy_files
  return tasks.from_records("training_copy", files, "x", "y", "", "bleu", vocabulary)


@pytest.fixture(scope="session")
def data(copy_task):
  return TaskData(copy_task, {"inputs": 64, "targets": 64}, batch_size=2, seed=3)
