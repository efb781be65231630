"""A real T5X checkpoint decoded as upstream T5X did (the first lines of 1,000)."""

import functools
import json
import shutil

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import seqio
from t5x import checkpoints, decoding, models, partitioning, train_state

from specdec_t5x.network.transformer import Transformer
from tests.real_data import M30K_TARGET
from tests.real_data import path as data_path

LINES = 16
LENGTH = 64


@pytest.fixture(scope="module")
def vocabulary():
  file = data_path("multi30k", "m30k_8k.model")
  return seqio.SentencePieceVocabulary(str(file), extra_ids=0)


@pytest.fixture(scope="module")
def params(tmp_path_factory, vocabulary):
  source = data_path("t5x_m30k", "target_checkpoint_2000")
  path = tmp_path_factory.mktemp("real") / "checkpoint_2000"
  shutil.copytree(source, path)
  model = make_model(vocabulary)
  shapes = {"encoder_input_tokens": (1, LENGTH), "decoder_input_tokens": (1, LENGTH)}
  types = dict.fromkeys(shapes, jnp.int32)
  state = jax.eval_shape(
    lambda rng: train_state.InferenceState.create(
      model.get_initial_variables(rng, shapes, types)
    ),
    jax.random.PRNGKey(0),
  )
  part = partitioning.PjitPartitioner(num_partitions=1)
  reader = checkpoints.OrbaxCheckpointManagerInterface(
    str(path.parent), state, part, restore_dtype="float32"
  )
  return reader.restore(path=str(path)).params


@pytest.fixture(scope="module")
def batch(vocabulary):
  lines = lambda name: (
    data_path("multi30k", name).read_text(encoding="utf-8").split("\n")[:LINES]
  )
  source, target = np.zeros((2, LINES, LENGTH), np.int32)
  english = lines("test_2016_flickr.en")
  for i, (en, de) in enumerate(zip(english, lines("test_2016_flickr.de"), strict=True)):
    for row, text in (
      (source[i], f"translate English to German: {en}"),
      (target[i], de),
    ):
      ids = [*vocabulary.encode(text), 1]
      row[: len(ids)] = ids
  features = {
    "encoder_input_tokens": source,
    "decoder_target_tokens": target,
    "decoder_input_tokens": np.pad(target, ((0, 0), (1, 0)))[:, :-1],
    "decoder_loss_weights": (target > 0).astype(np.int32),
  }
  return jax.tree.map(jnp.asarray, features)


def make_model(vocabulary, decode_fn=None):
  return models.EncoderDecoderModel(
    Transformer(M30K_TARGET), vocabulary, vocabulary, None, decode_fn
  )


def expected(name):
  path = data_path("t5x_m30k", "upstream_outputs", name)
  return [json.loads(line) for line in path.read_text().splitlines()[:LINES]]


def test_beams_are_upstreams(vocabulary, params, batch):
  """Greedy outputs: tests/e2e/test_m30k.py."""
  model = make_model(vocabulary, decoding.beam_search)
  predict = jax.jit(functools.partial(model.predict_batch_with_aux, num_decodes=4))
  decodes, aux = jax.device_get(predict(params, batch))
  rows = expected("test_2016_beam4_target.jsonl")
  found = [row[row > 0].tolist() for row in decodes]
  assert found == [row["prediction_tokens"] for row in rows]
  scores = [row["aux"]["scores"] for row in rows]
  np.testing.assert_allclose(aux["scores"], scores, atol=1e-3)


def test_scores_are_upstreams(vocabulary, params, batch):
  model = make_model(vocabulary)
  scores = jax.jit(model.score_batch)(params, batch)
  rows = expected("test_2016_score_target.jsonl")
  np.testing.assert_allclose(scores, [row["score"] for row in rows], atol=1e-3)
