"""The demo's table: plain decoding against speculation, in turn in one process.

The unit of time is seconds a token of one input at batch 1, reading it included:
sampled outputs differ in length, so whole outputs do not compare.
"""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import sentencepiece
from jaxtyping import Array, Int

from specdec_t5x.bench import jobs
from specdec_t5x.bench.costs import Costs, measure_costs
from specdec_t5x.bench.measured import Setting
from specdec_t5x.bench.run import PLAIN, Run, Way, measure
from specdec_t5x.bench.study import Job, Study
from specdec_t5x.bench.table import Table, columns, grid, render
from specdec_t5x.demo import held_out
from specdec_t5x.demo.recipe import DemoPair
from specdec_t5x.drafters.stepwise import DEFAULT_GAMMA
from specdec_t5x.network.functional import lacks_encoder
from specdec_t5x.network.heads import FeatureDrafter

# From outputs to what a metric says of them.
ScoreFn = Callable[[Sequence[Int[Array, "T"]]], float]

# Ways to draft that need no training come first.
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
  """Measures a demo pair's drafts on the first texts of its test split.

  Args:
    pair: whose drafts.
    inputs: how many texts.
    temperatures: of the decodes.
    more: whether its other drafts draft, too.
    report: takes a line a draft and temperature, as soon as it was measured.
  """
  study = job_of(pair, inputs, more).load()
  score, costs = _scorer(pair, inputs), costs_of(study)
  found = []
  for temperature in temperatures:
    for row in rows(study, Setting(DEFAULT_GAMMA, temperature), costs, score):
      found.append(row)
      report(", ".join(f"{c.header} {c.show(row.get(c.key))}" for c in _BRIEF))
  headers = (f"{pair.metric}: plain", "ours", "draft alone") if score else ()
  scores = zip(_SCORE_KEYS, headers, strict=False)
  beside = "".join(f" | {key}:1?- {header}" for key, header in scores)
  words = {"pair": repr(pair.name), "inputs": inputs}
  return render("comparison", found, words, beside)


def brief(table: Table) -> str:
  """Returns what a reader wants to know of the table first."""
  told = "Batch 1, in turn with plain decoding; the first two need no training."
  return f"## {table.title}\n\n{grid(_BRIEF, table.rows)}\n{told}\n"


def job_of(pair: DemoPair, inputs: int, more: bool) -> Job:
  """Returns a pair's ways to draft on so many texts of its test split."""

  def read():
    texts = [text for text, _ in held_out.held_out_texts(pair.name, inputs)]
    return jobs.encoded(pair.vocabulary, texts, pair.are_prompts, pair.max_input)

  parts = pair.drafts + (pair.more if more else ())
  drafts = _UNTRAINED | {part.name: part.path for part in parts}
  return Job(pair.name, pair.target.path, drafts, read, pair.max_output)


def costs_of(study: Study) -> dict[str, Costs]:
  """Returns what the parts of a decode take with each draft, greedily: seconds."""
  setting, found = Setting(DEFAULT_GAMMA, 0.0), {}
  for draft in study.drafts:
    decode = study.cell(draft, setting)
    cost = measure_costs(decode, setting.gamma, study.inputs[0], study.job.runs)
    found[draft.name] = cost
  return found


def rows(
  study: Study, setting: Setting, costs: Mapping[str, Costs], score: ScoreFn | None
) -> list[dict[str, Any]]:
  """Measures every draft beside the target alone.

  Args:
    study: what is decoded; all of its inputs are.
    setting: how; of the gamma of `costs`.
    costs: as `costs_of`.
    score: of outputs; None where they have no score.
  """
  temperature = setting.temperature
  ways = {PLAIN: Way(study.decode(temperature))}
  for draft in study.drafts:
    ways[draft.name] = Way(study.cell(draft, setting), costs=costs[draft.name])
  run = Run(lambda *_: ways, study, temperatures=(temperature,), setting=setting)
  plain, *others = measure(run)
  found = []
  for draft, measured in zip(study.drafts, others, strict=True):
    name = {"task": study.job.task, "draft": draft.name, "gamma": setting.gamma}
    row = {**measured.values, **name}
    if score:
      results = [plain.results, measured.results]
      network = draft.model and draft.model.network
      # What reads a target says nothing alone.
      if network and not (
        isinstance(network, FeatureDrafter) or lacks_encoder(network)
      ):
        alone = dataclasses.replace(study, target=draft.model).decode(temperature)
        results.append(map(study.program(alone), range(len(study.inputs))))
      outputs = [[result.tokens[0] for result in each] for each in results]
      row |= dict(zip(_SCORE_KEYS, map(score, outputs), strict=False))
    found.append(row)
  return found


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
    known = [row[(row > 0) & (row < processor.vocab_size())].tolist() for row in rows]
    return metric(references, [processor.decode(row) for row in known])

  return score
