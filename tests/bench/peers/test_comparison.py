"""The comparison with peers, of whichever peers are installed."""

import dataclasses
import json

import numpy as np
import pytest

from specdec_t5x import api
from specdec_t5x.bench.peers import (
  HUGGING_FACE,
  comparison,
  importable,
  programs,
)
from specdec_t5x.bench.peers import upstream as upstream_t5x
from specdec_t5x.network.config import T5Config
from specdec_t5x.network.sizes import random_params
from specdec_t5x.network.transformer import Transformer

CONFIG = T5Config(
  vocab_size=40,
  emb_dim=16,
  num_heads=2,
  num_encoder_layers=1,
  num_decoder_layers=2,
  head_dim=8,
  mlp_dim=24,
  mlp_activations=("gelu", "linear"),
)
LENGTH = 12


@pytest.fixture(scope="module")
def work():
  network = Transformer(CONFIG)
  target, draft = (api.Model(network, random_params(network, seed)) for seed in (1, 2))
  inputs = list(
    np.random.default_rng(0).integers(1, 40, size=(3, 1, 8), dtype=np.int32)
  )
  return programs.Workload(target, draft, inputs, 3, LENGTH, eos_id=-1, alpha=0.7)


@pytest.fixture(scope="module")
def table(work):
  return comparison.compare(work, {"size": "tiny"})


def test_all_programs_give_the_baselines_outputs(work, table):
  missing, rows = table.facts["missing"], table.rows
  assert tuple(row["program"] for row in rows) == programs.PROGRAMS
  for row in (row for row in rows if row["program"] not in missing):
    assert row["tokens"] == [LENGTH] * 3
    assert (row["equal"], row["ties"], row["gaps"]) == (3, 0, {})
    assert len(row["seconds"]) == 3
  assert 1 < table.facts["tokens_a_call"] <= work.gamma + 1


def test_what_is_missing_says_why(table):
  missing, hugging_face = table.facts["missing"], importable(HUGGING_FACE)
  assert (programs.HF_PLAIN in missing) != hugging_face
  assert (programs.UPSTREAM in missing) != upstream_t5x.available()
  reason = programs.NEEDS_TRAINED if hugging_face else programs.NOT_IMPORTABLE
  assert missing[programs.HF_DEFAULT] == reason
  assert {"program": programs.HF_DEFAULT, "ms_a_token": reason} in table.rows


def test_a_document_and_a_table_are_made(table):
  assert json.loads(table.json())["gamma"] == 3
  assert "size tiny" in table.markdown()


def test_a_difference_is_a_tie_where_logits_are_equal(work):
  # The last two tokens have the same output column, so the same logit.
  params = dict(work.target.params)
  kernel = np.array(params["decoder"]["logits_dense"]["kernel"])
  kernel[:, 39] = kernel[:, 38]
  params["decoder"] = {**params["decoder"], "logits_dense": {"kernel": kernel}}
  target = api.Model(work.target.network, params)
  gap = comparison.gap_of(dataclasses.replace(work, target=target))
  same, limit = gap(0, [5, 38], 1, (38, 39))
  other, _ = gap(0, [5, 38], 1, (38, 7))
  assert same <= limit < other


def test_upstream_is_refused_where_it_is_not(work):
  if upstream_t5x.available():
    pytest.skip("upstream T5X is installed")
  with pytest.raises(ValueError, match="Expected upstream T5X"):
    upstream_t5x.greedy(CONFIG, work.target.params, LENGTH, -1)
