"""The measurements of the pair in the package, on tiny random models."""

import dataclasses

import numpy as np
import pytest
import sentencepiece

from benchmarks.measure import Setting
from benchmarks.study import Draft, Job, Study, load_draft, pad_inputs
from lab.pair import comparison
from specdec_t5x.core import theory
from tests.benchmarks.conftest import STEADY
from tests.benchmarks.conftest import steady_parts as steady_parts
from tests.t5x_bridge import tiny

GAMMA, MAX_OUTPUT, EOS = 5, 10, 1
UNTRAINED = ("copy", "quantized")

pytestmark = pytest.mark.usefixtures("steady_parts")


@pytest.fixture(scope="module")
def study():
  target, draft = tiny.pair()
  drafts = tuple(load_draft(name, name, "float32") for name in UNTRAINED) + tuple(
    Draft(name, name, model, "draft_model", name)
    for name, model in (("other", draft), ("itself", target))
  )
  inputs = pad_inputs([[5, 6, 7, EOS], [8, EOS], [9, 10, EOS], [11, 12, EOS]])
  job = Job("ende", "t", {}, None, MAX_OUTPUT, runs=3)
  return Study(job, target, drafts, inputs, EOS)


def rows(study, temperature):
  setting = Setting(GAMMA, temperature)
  return comparison.rows(study, setting, comparison.costs_of(study), len)


def test_greedy_outputs_equal_the_target_s_and_it_drafts_best(study):
  greedy = rows(study, 0.0)
  *untrained, other, itself = greedy
  assert tuple(row["draft"] for row in untrained) == UNTRAINED
  assert (other["draft"], itself["draft"]) == ("other", "itself")
  assert {row["identical"] for row in greedy} == {"4/4"}
  assert itself["alpha"].value == 1.0 > other["alpha"].value
  assert itself["tokens_per_call"].value > other["tokens_per_call"].value >= 1.0
  assert other["speed"].low <= other["speed"].median <= other["speed"].high
  assert {other[f"{prefix}score"] for prefix in ("", "plain_", "draft_")} == {4}
  assert "draft_score" not in untrained[0]
  # Theorem 3.8 uses c from the measured parts.
  c = (STEADY[1][0] - STEADY[0][0]) / GAMMA / STEADY["plain"][0]
  for row in greedy:
    assert row["c"] == pytest.approx(c)
    theorem = theory.walltime_improvement(row["alpha"].value, GAMMA, c)
    assert row["theorem"] == pytest.approx(float(theorem))


def test_sampled_rows_have_no_count_of_identical_outputs(study):
  (row,) = rows(dataclasses.replace(study, drafts=study.drafts[-2:-1]), 1.0)
  assert row["identical"] == "sampled"


def test_scores_ignore_padding(tmp_path):
  vocabulary = tiny.train_vocabulary(tmp_path)
  encode = sentencepiece.SentencePieceProcessor(model_file=vocabulary).encode
  texts = tiny.sentences(2, seed=6)
  score = comparison.bleu(vocabulary, texts)
  # The ID 100_000 is beyond the vocabulary, like the padding rows of the network.
  outputs = [np.array([*encode(text), EOS, 100_000, 0, 0]) for text in texts]
  assert score(outputs) == pytest.approx(100)
  assert score(outputs[::-1]) < 100
