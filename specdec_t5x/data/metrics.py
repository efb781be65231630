"""BLEU and ROUGE as T5's evaluation has them, and likelihood: seqio metrics."""

from collections.abc import Sequence

import numpy as np

ROUGE_KEYS = ("rouge1", "rouge2", "rougeLsum")


def bleu(
  targets: Sequence[str | Sequence[str]], predictions: Sequence[str]
) -> dict[str, float]:
  """Corpus BLEU by sacrebleu: case kept, tokenizer 'intl', exponential smoothing.

  Args:
    targets: a reference for each prediction, or a list of references for each.
    predictions: the decoded texts.

  Returns:
    {"bleu": score between 0 and 100}.

  Raises:
    ValueError: no pairs, unequal lengths, unequal numbers of references, or no
      reference at all (a file that was registered without targets).
  """
  _check_pairs(targets, predictions)
  references = [[t] if isinstance(t, str) else list(t) for t in targets]
  counts = {len(r) for r in references}
  if len(counts) != 1:
    raise ValueError(
      "BLEU expected the same number of references for every example, got "
      f"{sorted(counts)}. Drop the surplus ones."
    )
  if not any(text for texts in references for text in texts):
    raise ValueError(
      "Every reference is empty, so BLEU can't be computed. Register the files with "
      "target paths, or run prediction only."
    )
  import sacrebleu  # Late: runs that decode alone need no metric, and it takes long.

  # sacrebleu wants one stream for each reference number, seqio gives one list for
  # each example.
  streams = [list(stream) for stream in zip(*references, strict=True)]
  score = sacrebleu.corpus_bleu(
    list(predictions),
    streams,
    smooth_method="exp",
    force=False,
    lowercase=False,
    tokenize="intl",
    use_effective_order=False,
  )
  return {"bleu": score.score}


def rouge(targets: Sequence[str], predictions: Sequence[str]) -> dict[str, float]:
  """Mean F1 of ROUGE-1, ROUGE-2 and summary-level ROUGE-L, times 100.

  T5 reports the median of bootstrap resamples of this mean, which varies with the
  random state in the second decimal; the mean itself is reported here.

  Args:
    targets: a reference summary for each prediction, sentences on lines of their own.
    predictions: the decoded summaries.

  Returns:
    {"rouge1": ..., "rouge2": ..., "rougeLsum": ...}, between 0 and 100.

  Raises:
    ValueError: no pairs, unequal lengths, or no reference at all.
  """
  _check_pairs(targets, predictions)
  if not any(targets):
    raise ValueError(
      "Every reference is empty, so ROUGE can't be computed. Register the files with "
      "a target field, or run prediction only."
    )
  from rouge_score import rouge_scorer  # Late: 1.5 s, for SciPy.

  scorer = rouge_scorer.RougeScorer(list(ROUGE_KEYS))
  scores = [
    scorer.score(target=_split_sentences(t), prediction=_split_sentences(p))
    for t, p in zip(targets, predictions, strict=True)
  ]
  return {
    key: 100 * float(np.mean([score[key].fmeasure for score in scores]))
    for key in ROUGE_KEYS
  }


def log_likelihood(targets: Sequence[str], scores: Sequence[float]) -> dict[str, float]:
  """Mean log probability of a target given its input, by the model that scores.

  Args:
    targets: a text for each score.
    scores: log probabilities, in nats.

  Returns:
    {"log_likelihood": mean over the examples}.
  """
  del targets
  return {"log_likelihood": float(np.mean(scores))}


def _split_sentences(summary: str) -> str:
  """Puts tokenised sentences on lines of their own, which rougeLsum needs."""
  return summary.replace(" . ", " .\n")


def _check_pairs(targets: Sequence, predictions: Sequence) -> None:
  if len(targets) != len(predictions) or not len(targets):
    raise ValueError(
      "Expected as many targets as predictions and at least one, got "
      f"{len(targets)} targets and {len(predictions)} predictions."
    )
