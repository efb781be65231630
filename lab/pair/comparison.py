"""Measures the drafts of the pair in the package, each in turn with plain decoding."""

import argparse
import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import sentencepiece
from jaxtyping import Array, Int

from benchmarks import jobs
from benchmarks.command import Command
from benchmarks.measure import PLAIN, Run, Setting, Way, measure
from benchmarks.study import Job, Study
from benchmarks.table import Table, render
from benchmarks.timed import Costs
from specdec_t5x.data import metrics
from specdec_t5x.demo import embedded
from specdec_t5x.drafters.draft_model import DEFAULT_GAMMA

# Computes a metric of outputs.
ScoreFn = Callable[[Sequence[Int[Array, "T"]]], float]

MAX_LENGTH = 80
# The first two need no training.
DRAFTS = {
  "copied input": "copy",
  "target in 8 bits": "quantized",
  "draft_small": embedded.draft(),
}


def make(args: argparse.Namespace) -> Table:
  """Measures the drafts on the first texts of the test set, and scores the outputs."""
  if args.num_inputs is not None and args.num_inputs < 2:
    raise ValueError(f"--num-inputs must be at least 2, got {args.num_inputs}.")
  inputs, references = embedded.examples(args.num_inputs)
  vocabulary = embedded.vocabulary()

  def read():
    return jobs.encoded(vocabulary, inputs, prompts=False)

  study = Job("ende", embedded.target(), DRAFTS, read, MAX_LENGTH).load()
  score = bleu(vocabulary, references)
  costs = costs_of(study)
  measured = []
  for temperature in args.temperatures:
    measured += rows(study, Setting(DEFAULT_GAMMA, temperature), costs, score)
  return render("demo", measured, {"inputs": len(inputs)}, package="lab")


def costs_of(study: Study) -> dict[str, Costs]:
  """Returns the times of a greedy decode's parts with each draft."""
  setting = Setting(DEFAULT_GAMMA, 0.0)
  decodes = {draft.name: study.cell(draft, setting) for draft in study.drafts}
  return study.costs(decodes, study.job.runs)


def rows(
  study: Study, setting: Setting, costs: Mapping[str, Costs], score: ScoreFn
) -> list[dict[str, Any]]:
  """Measures every draft in turn with the target alone.

  Args:
    study: the study, whose inputs are all decoded.
    setting: the setting, with the gamma of `costs`.
    costs: as in `costs_of`.
    score: the metric of outputs.
  """

  def alone(model=study.target):
    target_only = dataclasses.replace(study, target=model)
    return study.grouped(target_only.decode(setting.temperature), 1)

  ways = {PLAIN: Way(alone())}
  for draft in study.drafts:
    ways[draft.name] = Way(study.grouped(study.cell(draft, setting), 1))
  plain, *others = measure(Run(lambda *_: ways, study.groups, setting=setting))
  result = []
  for draft, row in zip(study.drafts, others, strict=True):
    cell = dataclasses.replace(row.cell, costs=costs[draft.name])
    outputs = {"plain_score": plain.results, "score": row.results}
    if draft.model:
      decoded = map(alone(draft.model), study.groups(1))
      outputs["draft_score"] = [result for (result,) in decoded]
    scores = {name: score([x.tokens[0] for x in run]) for name, run in outputs.items()}
    name = {"task": study.job.task, "draft": draft.name, "gamma": setting.gamma}
    result.append({**row.values, **cell.row(), **name, **scores})
  return result


def bleu(vocabulary: str, references: Sequence[str]) -> ScoreFn:
  """Returns the BLEU of outputs, without padding and rows beyond the vocabulary."""
  processor = sentencepiece.SentencePieceProcessor(model_file=vocabulary)

  def score(outputs):
    rows = map(np.asarray, outputs)
    ids = [row[(row > 0) & (row < processor.vocab_size())].tolist() for row in rows]
    texts = [processor.decode(row) for row in ids]
    return metrics.bleu(references, texts)["bleu"]

  return score


COMMAND = Command("demo", make, package="lab")
