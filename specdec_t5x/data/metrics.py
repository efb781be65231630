"""seqio metrics: BLEU and ROUGE as in T5's evaluation, and likelihood."""

from collections.abc import Sequence

import numpy as np


def bleu(
  targets: Sequence[str | Sequence[str]], predictions: Sequence[str]
) -> dict[str, float]:
  """Computes corpus BLEU by sacrebleu: cased, tokenizer 'intl', exponential smoothing.

  Args:
    targets: one reference, or a list of references, per prediction.
    predictions: the decoded texts.

  Returns:
    {"bleu": score between 0 and 100}.

  Raises:
    ValueError: if there are no pairs, unequal lengths, unequal numbers of references,
      or no references (a file registered without targets).
  """
  references = [[t] if isinstance(t, str) else list(t) for t in targets]
  _check_pairs(references, predictions)
  counts = {len(r) for r in references}
  if len(counts) != 1:
    raise ValueError(
      "BLEU needs an equal number of references for every example, got "
      f"{sorted(counts)}. Remove the surplus references."
    )
  # The import takes long, and runs that only decode need no metric.
  import sacrebleu

  # sacrebleu expects one list per reference number; seqio has one list per example.
  streams = [list(stream) for stream in zip(*references, strict=True)]
  # Corpus BLEU is cased and smoothed exponentially by default.
  score = sacrebleu.corpus_bleu(list(predictions), streams, tokenize="intl")
  return {"bleu": score.score}


def rouge(targets: Sequence[str], predictions: Sequence[str]) -> dict[str, float]:
  """Computes the mean F1 of ROUGE-1, ROUGE-2 and summary-level ROUGE-L, times 100.

  T5 reports the median of bootstrap resamples of the mean. The median varies with the
  random state in the second decimal. This function returns the mean.

  Args:
    targets: one reference summary per prediction, with one sentence per line.
    predictions: the decoded summaries.

  Returns:
    {"rouge1": ..., "rouge2": ..., "rougeLsum": ...}, between 0 and 100.

  Raises:
    ValueError: if there are no pairs, unequal lengths, or no references.
  """
  _check_pairs([[target] for target in targets], predictions)
  # The import takes 1.5 s, because rouge_score imports SciPy.
  from rouge_score import rouge_scorer

  keys = ["rouge1", "rouge2", "rougeLsum"]
  scorer = rouge_scorer.RougeScorer(keys)
  # rougeLsum expects one sentence per line.
  scores = [
    scorer.score(target.replace(" . ", " .\n"), prediction.replace(" . ", " .\n"))
    for target, prediction in zip(targets, predictions, strict=True)
  ]
  return {key: 100 * float(np.mean([x[key].fmeasure for x in scores])) for key in keys}


def log_likelihood(targets: Sequence[str], scores: Sequence[float]) -> dict[str, float]:
  """Computes the mean log probability of targets given inputs, from a model's scores.

  Args:
    targets: one text per score.
    scores: log probabilities, in nats.

  Returns:
    {"log_likelihood": mean over the examples}.
  """
  del targets
  return {"log_likelihood": float(np.mean(scores))}


def _check_pairs(references: Sequence[Sequence[str]], predictions: Sequence) -> None:
  """Raises a ValueError if lengths are unequal or 0, or all references are empty."""
  if len(references) != len(predictions) or not references:
    raise ValueError(
      "Expected an equal number of targets and predictions, at least 1, got "
      f"{len(references)} targets and {len(predictions)} predictions."
    )
  if not any(text for texts in references for text in texts):
    raise ValueError(
      "Every reference is empty, so the metric can't be computed. Register the files "
      "with targets (a target path or a target field), or run prediction only."
    )
