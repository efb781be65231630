"""The demo's measurements on tiny random models."""

import dataclasses
import types

import numpy as np
import pytest
import sentencepiece

from benchmarks.measure import Setting
from benchmarks.study import Draft, Job, Study, load_draft, pad_inputs
from specdec_t5x.analysis import theory
from specdec_t5x.demo import comparison, recipe
from tests.benchmarks.conftest import STEADY
from tests.benchmarks.conftest import steady_parts as steady_parts
from tests.t5x_bridge import tiny

GAMMA, MAX_OUTPUT, EOS = 5, 10, 1

pytestmark = pytest.mark.usefixtures("steady_parts")


@pytest.fixture(scope="module")
def study():
  target, draft = tiny.pair()
  untrained = comparison._UNTRAINED.items()
  drafts = tuple(load_draft(*each, "float32") for each in untrained) + tuple(
    Draft(name, name, model, "draft_model", name)
    for name, model in (("other", draft), ("itself", target))
  )
  inputs = pad_inputs([[5, 6, 7, EOS], [8, EOS], [9, 10, EOS], [11, 12, EOS]])
  job = Job("ende", "t", {}, None, MAX_OUTPUT, runs=3)
  return Study(job, target, drafts, inputs, EOS)


def rows(study, temperature, score):
  setting = Setting(GAMMA, temperature)
  return comparison.rows(study, setting, comparison.costs_of(study), score)


@pytest.fixture(scope="module")
def greedy(study, steady_parts):
  return rows(study, 0.0, lambda outputs: len(outputs))


def test_greedy_outputs_equal_the_target_s_and_it_drafts_best(study, greedy):
  *untrained, other, itself = greedy
  assert [row["draft"] for row in untrained] == [*comparison._UNTRAINED]
  assert (other["draft"], itself["draft"]) == ("other", "itself")
  assert {row["identical"] for row in greedy} == {"4/4"}
  assert itself["alpha"].value == 1.0 > other["alpha"].value
  assert itself["tokens_per_call"].value > other["tokens_per_call"].value >= 1.0
  assert other["speed"].low <= other["speed"].median <= other["speed"].high
  assert {other[f"{prefix}score"] for prefix in ("", "plain_", "draft_")} == {4}
  # Theorem 3.8 uses c from the measured parts.
  c = STEADY["draft"][0] / GAMMA / STEADY["token"][0]
  for row in greedy:
    assert row["c"] == pytest.approx(c)
    theorem = theory.walltime_improvement(row["alpha"].value, GAMMA, c)
    assert row["theorem"] == pytest.approx(float(theorem))


def test_sampled_rows_have_no_count_of_identical_outputs(study):
  (row,) = rows(dataclasses.replace(study, drafts=study.drafts[-2:-1]), 1.0, None)
  assert row["identical"] == "sampled"
  assert "score" not in row


@pytest.mark.parametrize(("pair", "scored"), [(recipe.ENDE, True), (recipe.LM, False)])
def test_tables_have_scores_if_there_is_a_metric(
  pair, scored, study, greedy, monkeypatch
):
  job = type("Job", (), {"load": lambda self: study})()
  monkeypatch.setattr(comparison, "job_of", lambda *args: job)
  monkeypatch.setattr(comparison, "costs_of", lambda study: {})
  monkeypatch.setattr(comparison, "rows", lambda *args: greedy)
  monkeypatch.setattr(comparison, "_scorer", lambda *args: len if scored else None)
  table = comparison.compare(pair, 4, (0.0,))
  assert ("draft alone" in table.markdown()) == scored
  brief = comparison.brief(table)
  assert "4/4" in brief
  assert max(map(len, brief.splitlines())) <= 100


def test_drafters_without_training_come_first():
  drafts = comparison.job_of(recipe.ENDE, 4, more=True).drafts
  sources = [part.path for part in (*recipe.ENDE.drafts, *recipe.ENDE.more)]
  assert list(drafts.values()) == ["copy", "quantized", *sources]


def test_scores_ignore_padding(tmp_path, monkeypatch):
  vocabulary = tiny.train_vocabulary(tmp_path)
  encode = sentencepiece.SentencePieceProcessor(model_file=vocabulary).encode
  texts = tiny.sentences(2, seed=6)
  pair = types.SimpleNamespace(name="ende", vocabulary=vocabulary)
  held_out = [("", text) for text in texts]
  monkeypatch.setattr(comparison.held_out, "held_out_texts", lambda *args: held_out)
  score = comparison._scorer(pair, 2)
  # The ID 100_000 is beyond the vocabulary, like the padding rows of the network.
  outputs = [np.array([*encode(text), EOS, 100_000, 0, 0]) for text in texts]
  assert score(outputs) == pytest.approx(100)
  assert score(outputs[::-1]) < 100
  assert comparison._scorer(types.SimpleNamespace(name="lm"), 2) is None
