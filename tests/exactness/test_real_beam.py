"""Beam search on the Multi30k pair matches T5X's recorded beam, with fewer calls."""

import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import seqio
from t5x import models

from specdec_t5x.contrib.beam.decoder import BeamDecoder
from specdec_t5x.core.distributions import GREEDY
from specdec_t5x.network.transformer import Transformer
from specdec_t5x.t5x_bridge.model import EncoderDecoderModel
from tests import real_data
from tests.exactness.test_real_pair import load

LINES = 3
LENGTH = 64


@pytest.fixture(scope="module")
def vocabulary():
  file = real_data.path("multi30k", "m30k_8k.model")
  return seqio.SentencePieceVocabulary(str(file), extra_ids=0)


def encode(vocabulary):
  lines = real_data.path("multi30k", "test_2016_flickr.en").read_text().split("\n")
  rows = np.zeros((LINES, LENGTH), np.int32)
  for row, line in zip(rows, lines, strict=False):
    ids = [*vocabulary.encode(f"translate English to German: {line}"), 1]
    row[: len(ids)] = ids
  return jnp.asarray(rows)


def test_hypotheses_are_upstreams(vocabulary):
  networks = map(Transformer, (real_data.M30K_TARGET, real_data.M30K_DRAFT))
  model = EncoderDecoderModel(
    BeamDecoder(*networks, gamma=2, draft_beam_size=8),
    vocabulary,
    vocabulary,
    GREEDY,
    default_decoder_params=models.DecoderParams(num_decodes=4),
  )
  inputs = encode(vocabulary)
  batch = {"encoder_input_tokens": inputs, "decoder_input_tokens": inputs}
  tokens, aux = jax.jit(model.predict_batch_with_aux)(load(), batch)
  path = real_data.path("t5x_m30k", "upstream_outputs", "test_2016_beam4_target.jsonl")
  expected = [json.loads(line) for line in path.read_text().splitlines()[:LINES]]
  found = [row[row > 0].tolist() for row in np.asarray(tokens)]
  assert found == [row["prediction_tokens"] for row in expected]
  scores = [row["aux"]["scores"] for row in expected]
  np.testing.assert_allclose(aux["scores"], scores, atol=1e-3)
  assert (aux["target_calls"] < aux["tokens"]).all()
