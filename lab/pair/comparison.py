r"""Measures the drafts of the pair in the package, each in turn with plain decoding.

  python -m lab demo --output DIR

Times are seconds per token of an input at batch 1, encoder included. Times per output
are not comparable, as sampled outputs differ in length.
"""

import argparse
import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import sentencepiece
from jaxtyping import Array, Int

from benchmarks import jobs
from benchmarks.command import Command, at_least
from benchmarks.costs import Costs, measure_costs
from benchmarks.measured import Setting
from benchmarks.run import PLAIN, Run, Way, measure
from benchmarks.study import Job, Study
from benchmarks.table import Table, render
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
  at_least(args, num_inputs=2)
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
  return render("comparison", measured, {"inputs": len(inputs)}, package="lab")


def costs_of(study: Study) -> dict[str, Costs]:
  """Returns the times of a greedy decode's parts with each draft."""
  setting = Setting(DEFAULT_GAMMA, 0.0)
  costs = {}
  for draft in study.drafts:
    decode = study.cell(draft, setting)
    cost = measure_costs(decode, setting.gamma, study.inputs[0], study.job.runs)
    costs[draft.name] = cost
  return costs


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
  temperature = setting.temperature
  ways = {PLAIN: Way(study.decode(temperature))}
  for draft in study.drafts:
    ways[draft.name] = Way(study.cell(draft, setting), costs=costs[draft.name])
  plain, *others = measure(Run(lambda *_: ways, study, setting=setting))
  result = []
  for draft, measured in zip(study.drafts, others, strict=True):
    runs = {"plain_score": plain.results, "score": measured.results}
    if draft.model:
      alone = dataclasses.replace(study, target=draft.model).decode(temperature)
      runs["draft_score"] = map(study.program(alone), range(len(study.inputs)))
    scores = {name: score([x.tokens[0] for x in run]) for name, run in runs.items()}
    name = {"task": study.job.task, "draft": draft.name, "gamma": setting.gamma}
    result.append({**measured.values, **name, **scores})
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


COMMAND = Command(
  __doc__,
  make,
  {
    "num_inputs": (60, "number of inputs, from the start of the test set"),
    "temperatures": [0.0, 1.0],
  },
)
