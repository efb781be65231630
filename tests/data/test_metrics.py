"""BLEU and ROUGE against hand calculations and against sacrebleu."""

import json
import math

import pytest
import sacrebleu

from specdec_t5x.data import metrics
from tests import real_data

REFERENCES = [["a b c d", "e f g h"], ["i j k l", "m n o p"]]
ROUGES = ("rouge1", "rouge2", "rougeLsum")


@pytest.mark.parametrize(
  ("metric", "targets", "predictions", "expected"),
  [
    # 6 tokens against 7; n-gram matches 6/6, 5/5, 4/4, 3/3; brevity exp(1 - 7/6).
    ("bleu", ["a b c d e f g"], ["a b c d e f"], {"bleu": 100 * math.exp(1 - 7 / 6)}),
    # Unigrams 3/4 (the case differs), bigrams 1/3, trigrams 0 -> 1/(2*2), 4-grams
    # 0 -> 1/(4*1): smoothed exponentially.
    (
      "bleu",
      ["the cat sat down"],
      ["The cat sat down"],
      {"bleu": 100 * (3 / 4 * 2 / 3 * 1 / 2 * 1 / 2) ** 0.25},
    ),
    # The tokenizer 'intl' splits off the guillemets, so all words match; '13a' does
    # not.
    ("bleu", ["« a b c d »"], ["«a b c d»"], {"bleu": 100}),
    # References belong to examples.
    ("bleu", REFERENCES, ["e f g h", "i j k l"], {"bleu": 100}),
    # 3 of 4 and 3 of 3 words; 2 of 3 and 2 of 2 bigrams; longest subsequence of 3.
    (
      "rouge",
      ["a b c d"],
      ["a b c"],
      {"rouge1": 100 * 6 / 7, "rouge2": 100 * 4 / 5, "rougeLsum": 100 * 6 / 7},
    ),
    # The mean over examples.
    ("rouge", ["a b", "a b"], ["a b", "c d"], dict.fromkeys(ROUGES, 50)),
    # Swapped sentences match fully as two lines, and by half as one line.
    ("rouge", ["a b . c d"], ["c d . a b"], {"rougeLsum": 100}),
    ("rouge", ["a b c d"], ["c d a b"], {"rougeLsum": 50}),
  ],
)
def test_scores_match_hand_calculations(metric, targets, predictions, expected):
  scores = getattr(metrics, metric)(targets, predictions)
  assert {name: scores[name] for name in expected} == pytest.approx(expected)
  assert scores.keys() == ({"bleu"} if metric == "bleu" else set(ROUGES))


@pytest.mark.parametrize("metric", [metrics.bleu, metrics.rouge])
@pytest.mark.parametrize(
  ("targets", "predictions", "message"),
  [
    (["", ""], ["a", "b"], "Every reference is empty"),
    (["a"], ["a", "b"], "1 targets and"),
    ([], [], "0 targets and"),
  ],
)
def test_unequal_or_empty_lists_are_refused(metric, targets, predictions, message):
  with pytest.raises(ValueError, match=message):
    metric(targets, predictions)


def test_bleu_of_upstream_outputs():
  path = real_data.path("t5x_m30k/upstream_outputs/test_2016_greedy_target.jsonl")
  with open(path) as file:
    rows = [json.loads(line) for line in file]
  targets = [row["inputs"]["targets_pretokenized"] for row in rows]
  predictions = [row["prediction"] for row in rows]
  # The published 33.14 is from sacrebleu's default tokenizer; T5 uses 'intl'.
  assert round(sacrebleu.corpus_bleu(predictions, [targets]).score, 2) == 33.14
  direct = sacrebleu.BLEU(tokenize="intl").corpus_score(predictions, [targets]).score
  assert metrics.bleu(targets, predictions)["bleu"] == pytest.approx(direct)
  assert direct == pytest.approx(33.05, abs=0.005)
