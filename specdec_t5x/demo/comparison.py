"""The demo's table: plain decoding against speculation, in turn in one process.

Times are seconds per token of an input at batch 1, encoder included. Times per output
are not comparable, as sampled outputs differ in length.
"""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import sentencepiece
from jaxtyping import Array, Int

from benchmarks import jobs
from benchmarks.costs import Costs, measure_costs
from benchmarks.measured import Setting
from benchmarks.run import PLAIN, Run, Way, measure
from benchmarks.study import Job, Study
from benchmarks.table import Table, columns, grid, render
from specdec_t5x.demo import held_out
from specdec_t5x.demo.recipe import DemoPair
from specdec_t5x.drafters.draft_model import DEFAULT_GAMMA
from specdec_t5x.network.functional import lacks_encoder
from specdec_t5x.network.heads import FeatureDrafter

# Computes a metric of outputs.
ScoreFn = Callable[[Sequence[Int[Array, "T"]]], float]

# Drafts without training, the first rows of the table.
_UNTRAINED = {"copied input": "copy", "target in 8 bits": "quantized"}
_BRIEF = columns(
  "draft | temperature T | tokens_per_call tokens a target call | speed "
  "times as fast (quartiles) | identical same outputs"
)
_SCORE_KEYS = ("plain_score", "score", "draft_score")


def compare(
  pair: DemoPair,
  inputs: int,
  temperatures: Sequence[float],
  more: bool = False,
  report: Callable[[str], None] = lambda line: None,
) -> Table:
  """Measures a demo pair's drafts on the first texts of the test split.

  Args:
    pair: the pair.
    inputs: the number of texts.
    temperatures: the sampling's temperatures.
    more: whether to measure `pair.more`, too.
    report: called with a line for each draft and temperature, after the measurement.
  """
  study = job_of(pair, inputs, more).load()
  score = _scorer(pair, inputs)
  costs = costs_of(study)
  measured = []
  for temperature in temperatures:
    for row in rows(study, Setting(DEFAULT_GAMMA, temperature), costs, score):
      measured.append(row)
      report(", ".join(f"{c.header} {c.show(row.get(c.key))}" for c in _BRIEF))
  headers = (f"{pair.metric}: plain", "ours", "draft alone") if score else ()
  scores = zip(_SCORE_KEYS, headers, strict=False)
  score_columns = "".join(f" | {key}:1?- {header}" for key, header in scores)
  words = {"pair": repr(pair.name), "inputs": inputs}
  return render("comparison", measured, words, score_columns)


def brief(table: Table) -> str:
  """Returns the most important columns of the table, with title and note."""
  note = (
    "Batch 1, alternating with plain decoding; the first two methods need no training."
  )
  return f"## {table.title}\n\n{grid(_BRIEF, table.rows)}\n{note}\n"


def job_of(pair: DemoPair, inputs: int, more: bool) -> Job:
  """Returns the job of a pair's drafts on the first texts of the test split."""

  def read():
    texts = [text for text, _ in held_out.held_out_texts(pair.name, inputs)]
    return jobs.encoded(pair.vocabulary, texts, pair.are_prompts, pair.max_input)

  parts = pair.drafts + (pair.more if more else ())
  drafts = _UNTRAINED | {part.name: part.path for part in parts}
  return Job(pair.name, pair.target.path, drafts, read, pair.max_output)


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
  study: Study, setting: Setting, costs: Mapping[str, Costs], score: ScoreFn | None
) -> list[dict[str, Any]]:
  """Measures every draft in turn with the target alone.

  Args:
    study: the study, whose inputs are all decoded.
    setting: the setting, with the gamma of `costs`.
    costs: as in `costs_of`.
    score: the metric of outputs; None if the task has no metric.
  """
  temperature = setting.temperature
  ways = {PLAIN: Way(study.decode(temperature))}
  for draft in study.drafts:
    ways[draft.name] = Way(study.cell(draft, setting), costs=costs[draft.name])
  run = Run(lambda *_: ways, study, setting=setting)
  plain, *others = measure(run)
  result = []
  for draft, measured in zip(study.drafts, others, strict=True):
    name = {"task": study.job.task, "draft": draft.name, "gamma": setting.gamma}
    row = {**measured.values, **name}
    if score:
      runs = [plain.results, measured.results]
      network = draft.model and draft.model.network
      # A draft that needs the target's features or encoder can't decode alone.
      if network and not (
        isinstance(network, FeatureDrafter) or lacks_encoder(network)
      ):
        alone = dataclasses.replace(study, target=draft.model).decode(temperature)
        runs.append(map(study.program(alone), range(len(study.inputs))))
      outputs = [[decoded.tokens[0] for decoded in run] for run in runs]
      row |= dict(zip(_SCORE_KEYS, map(score, outputs), strict=False))
    result.append(row)
  return result


def _scorer(pair, inputs) -> ScoreFn | None:
  metric = held_out.METRICS.get(pair.name)
  if metric is None:
    return None
  references = [
    reference for _, reference in held_out.held_out_texts(pair.name, inputs)
  ]
  processor = sentencepiece.SentencePieceProcessor(model_file=pair.vocabulary)

  def score(outputs):
    rows = map(np.asarray, outputs)
    ids = [row[(row > 0) & (row < processor.vocab_size())].tolist() for row in rows]
    return metric(references, [processor.decode(row) for row in ids])

  return score
