"""The demo's measurements, on tiny random models."""

import dataclasses
import json

import numpy as np
import pytest
import sentencepiece

import specdec_t5x
from specdec_t5x.analysis import theory
from specdec_t5x.analysis.acceptance import Estimate
from specdec_t5x.bench.walltime import Spread, alternate, median_ratio
from specdec_t5x.demo import recipe, table
from specdec_t5x.demo.comparison import Comparison, Row
from tests.t5x_bridge import tiny

GAMMA, MAX_OUTPUT = 3, 10


@pytest.fixture(scope="module")
def study(tmp_path_factory):
  root = tmp_path_factory.mktemp("demo")
  target = specdec_t5x.load_model(tiny.save_t5x(root / "t", tiny.TARGET, seed=1))
  draft = specdec_t5x.load_model(tiny.save_t5x(root / "d", tiny.DRAFT, seed=2))
  vocabulary = tiny.train_vocabulary(root)
  texts = [(text, text) for text in tiny.sentences(4, seed=6)]
  study = Comparison(
    target=target,
    drafts={"other": draft, "itself": target},
    processor=sentencepiece.SentencePieceProcessor(model_file=vocabulary),
    texts=texts,
    metric=lambda references, outputs: float(len(outputs)),
    gamma=GAMMA,
    max_input=32,
    max_output=MAX_OUTPUT,
  )
  return study, vocabulary


def test_greedy_outputs_are_the_targets_and_the_target_drafts_best(study):
  comparison, vocabulary = study
  other, itself = comparison.rows(0.0)
  assert (other.draft, itself.draft) == ("other", "itself")
  assert other.identical == itself.identical == other.inputs == 4
  assert itself.alpha.value == 1.0 > other.alpha.value
  assert itself.tokens_per_call.value > other.tokens_per_call.value >= 1.0
  predicted = theory.walltime_improvement(other.alpha.value, GAMMA, other.c)
  assert other.predicted == pytest.approx(float(predicted))
  assert other.speedup.low <= other.speedup.median <= other.speedup.high

  texts = [text for text, _ in comparison.texts]
  draft = comparison.drafts["other"]
  outputs = specdec_t5x.generate(
    *(texts, comparison.target, draft, vocabulary),
    gamma=GAMMA,
    max_length=MAX_OUTPUT,
  )
  calls = sum(o.target_calls for o in outputs)
  expected = sum(len(o.tokens) for o in outputs) / calls
  assert other.tokens_per_call.value == pytest.approx(expected)


def test_sampled_rows_claim_no_identity(study):
  comparison = study[0]
  one_draft = {"other": comparison.drafts["other"]}
  (row,) = dataclasses.replace(comparison, drafts=one_draft).rows(1.0)
  assert row.identical is None


def test_the_table_shows_every_number_and_the_file_keeps_them(tmp_path):
  row = Row(
    temperature=0.0,
    gamma=5,
    draft="draft_small",
    alpha=Estimate(0.9, 0.89, 0.91),
    tokens_per_call=Estimate(4.5, 4.4, 4.6),
    c=0.25,
    speedup=Spread(1.75, 1.6, 1.9),
    predicted=2.08,
    identical=99,
    inputs=100,
    plain_score=88.1,
    score=88.2,
    draft_score=80.3,
  )
  text = table.table(recipe.ENDE, [row])
  shown = ("0.900 [0.890, 0.910]", "4.50", "1.75x [1.60, 1.90]", "2.08x (c 0.25)")
  for cell in (*shown, "99/100", "88.1 / 88.2 / 80.3"):
    assert cell in text
  sampled = dataclasses.replace(row, temperature=1.0, identical=None)
  assert "sampled" in table.table(recipe.ENDE, [sampled])
  unscored = dataclasses.replace(row, plain_score=None, score=None, draft_score=None)
  text = table.table(recipe.LM, [unscored])
  assert "99/100" in text
  assert "draft alone" not in text
  table.save(str(tmp_path / "new" / "rows.json"), [row])
  (saved,) = json.loads((tmp_path / "new" / "rows.json").read_text())
  assert saved == dataclasses.asdict(row)


def test_programs_take_turns_and_the_first_round_is_not_timed():
  calls = []
  program = lambda name: lambda value: calls.append((name, value)) or np.ones(value)
  timed = alternate({"a": program("a"), "b": program("b")}, [1, 2])
  assert calls == [("a", 1), ("b", 1), ("a", 1), ("b", 1), ("b", 2), ("a", 2)]
  assert [result.size for result in timed["b"].results] == [1, 2]
  assert (timed["a"].seconds > 0).all()
  assert timed["a"].seconds.shape == (2,)
  with pytest.raises(ValueError, match="at least one program and one input"):
    alternate({"a": program("a")}, [])


def test_the_ratio_is_the_median_of_ratios():
  spread = median_ratio(np.array([1.0, 2.0, 30.0]), np.array([1.0, 1.0, 1.0]))
  assert (spread.low, spread.median, spread.high) == (1.5, 2.0, 16.0)
