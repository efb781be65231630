"""A real checkpoint decodes like upstream T5X, on the first lines of 1,000."""

import functools
import json
import shutil

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import seqio
from t5x import decoding

from specdec_t5x.checkpoints.checkpoint import Checkpoint
from specdec_t5x.data import tasks
from specdec_t5x.network.transformer import Transformer
from specdec_t5x.t5x_bridge import restore
from tests.real_data import M30K_TARGET
from tests.real_data import path as data_path
from tests.t5x_bridge import tiny

pytestmark = pytest.mark.slow

NETWORK = Transformer(M30K_TARGET)
LINES = 8
LENGTH = 64


@pytest.fixture(scope="module")
def vocabulary():
  file = data_path("multi30k", "m30k_8k.model")
  return seqio.SentencePieceVocabulary(str(file), extra_ids=0)


@pytest.fixture(scope="module")
def params(tmp_path_factory):
  source = data_path("t5x_m30k", "target_checkpoint_2000")
  path = tmp_path_factory.mktemp("real") / "checkpoint_2000"
  shutil.copytree(source, path)
  checkpoint = Checkpoint.open(str(path))
  state = restore.abstract_state(NETWORK)
  layout = restore.one_device()
  return restore.restore(checkpoint, state, layout, "float32").params


@pytest.fixture(scope="module")
def batch(vocabulary):
  files = (data_path("multi30k", f"test_2016_flickr.{kind}") for kind in ("en", "de"))
  name = tasks.translation_from_files(
    "contract_m30k", {"test": tuple(map(str, files))}, vocabulary=vocabulary
  )
  lengths = {"inputs": LENGTH, "targets": LENGTH}
  task = seqio.get_mixture_or_task(name)
  lines = f"test[:{LINES}]"
  dataset = task.get_dataset(lengths, lines, shuffle=False)
  features = seqio.EncDecFeatureConverter(pack=False)(dataset, lengths)
  rows = list(features.as_numpy_iterator())
  return {name: jnp.stack([row[name] for row in rows]) for name in rows[0]}


def expected(name):
  path = data_path("t5x_m30k", "upstream_outputs", name)
  return [json.loads(line) for line in path.read_text().splitlines()[:LINES]]


def test_beams_equal_upstream_s(vocabulary, params, batch):
  """tests/e2e/test_m30k.py has greedy outputs."""
  model = tiny.t5x_model(NETWORK, vocabulary, decoding.beam_search)
  predict = jax.jit(functools.partial(model.predict_batch_with_aux, num_decodes=4))
  decodes, aux = jax.device_get(predict(params, batch))
  rows = expected("test_2016_beam4_target.jsonl")
  found = [row[row > 0].tolist() for row in decodes]
  assert found == [row["prediction_tokens"] for row in rows]
  scores = [row["aux"]["scores"] for row in rows]
  np.testing.assert_allclose(aux["scores"], scores, atol=1e-3)


def test_scores_equal_upstream_s(vocabulary, params, batch):
  model = tiny.t5x_model(NETWORK, vocabulary)
  scores = jax.jit(model.score_batch)(params, batch)
  rows = expected("test_2016_score_target.jsonl")
  np.testing.assert_allclose(scores, [row["score"] for row in rows], atol=1e-3)
