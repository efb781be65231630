r"""Measures a pair on this device and writes the best GAMMA to a gin file.

  python -m specdec_t5x.bench choose-gamma --preset demo --tasks ende \
    --output runs/gamma.gin
  python -m specdec_t5x.bench choose-gamma --target DIR --draft NAME=DIR \
    --vocabulary FILE --inputs FILE --prefix "translate English to German: " \
    --temperature 1 --output my_gamma.gin
  python -m t5x.infer --gin_file=configs/spec_ende.gin --gin_file=my_gamma.gin

Prints the speed-up that is predicted for each gamma, from alpha and the measured cost
of a draft step, of each block and of the encoders.
"""

import argparse
import dataclasses
import os
from collections.abc import Mapping, Sequence

import numpy as np

from specdec_t5x.bench import jobs
from specdec_t5x.bench.cells import measure
from specdec_t5x.bench.command import Command
from specdec_t5x.bench.costs import Costs, measure_costs
from specdec_t5x.bench.environment import machine
from specdec_t5x.bench.measured import Setting
from specdec_t5x.bench.pairs import Draft, Study
from specdec_t5x.bench.table import Table, put


@dataclasses.dataclass(frozen=True)
class Choice:
  """What was measured, and what follows.

  Attributes:
    alpha: acceptance, by mass.
    tokens: mean length of an output.
    costs: of the parts, by gamma.
    predicted: speed-up of whole calls, by gamma.
  """

  alpha: float
  tokens: float
  costs: Mapping[int, Costs]
  predicted: Mapping[int, float]

  @property
  def gamma(self) -> int:
    """The gamma that is predicted to be fastest."""
    return max(self.predicted, key=self.predicted.get)


def choose(
  study: Study, draft: Draft, gammas: Sequence[int], temperature: float
) -> Choice:
  """Measures alpha and what the parts cost, and predicts the speed of each gamma.

  Whole calls: encoder + tokens * token over encoders + calls * (gamma draft step +
  block), with calls = tokens / E(alpha, gamma).

  Raises:
    ValueError: where a gamma is below 1, or no drafted token was tried.
  """
  if not gammas or min(gammas) < 1:
    raise ValueError(f"--gammas: expected numbers of at least 1, got {list(gammas)}.")
  counted = measure(study, draft, Setting(max(gammas), temperature, timed=False))
  alpha = counted.alpha_by_mass
  if alpha.value is None:
    raise ValueError(
      "No drafted token was tried: the outputs are too short. Raise --max-length, or "
      "give other --inputs."
    )
  decodes = {
    gamma: study.cell(draft, Setting(gamma, temperature)) for gamma in {*gammas}
  }
  costs = measure_costs(decodes, study.inputs[0], study.job.runs)
  tokens = float(np.mean(counted.columns["emitted"]))
  predicted = {
    gamma: float(costs[gamma].call_improvement(alpha.value, tokens))
    for gamma in sorted(decodes)
  }
  return Choice(alpha.value, tokens, costs, predicted)


def _row(choice: Choice, gamma: int):
  costs = choice.costs[gamma]
  return {
    "gamma": f"{gamma} (best)" if gamma == choice.gamma else gamma,
    "c": costs.c,
    "block": costs.block / costs.plain,
    "loop": float(costs.loop_improvement(choice.alpha)),
    "calls": choice.predicted[gamma],
  }


def gin_lines(choice: Choice, study: Study, draft: Draft, temperature: float) -> str:
  """Returns a gin file for after configs/spec_*.gin."""
  found = machine()
  speeds = ", ".join(f"{g}: {speed:.2f}" for g, speed in choice.predicted.items())
  about = [
    f"Draft length for {study.job.task}, draft {draft.name}, at T = {temperature:g}.",
    "For after configs/spec_*.gin: --gin_file=configs/spec_ende.gin --gin_file=THIS",
    f"Measured at batch 1 on {found['device']}, {found['cores']} cores, jax "
    f"{found['jax']}: alpha {choice.alpha:.3f}.",
    f"Predicted speed-up of whole calls by gamma: {speeds}.",
  ]
  if choice.predicted[choice.gamma] < 1:
    about.append("No gamma is predicted to pay: configs/baseline_*.gin are faster.")
  best = f"GAMMA = {choice.gamma}", "GAMMA_POLICY = 'fixed'"
  return "\n".join([*(f"# {line}" for line in about), *best]) + "\n"


def make(args: argparse.Namespace) -> Table:
  """Measures what the flags say and returns the prediction, and the file's text."""
  study = jobs.load(args)
  draft = study.drafts[0]
  found = choose(study, draft, args.gammas, args.temperature)
  text = gin_lines(found, study, draft, args.temperature)
  rows = [_row(found, gamma) for gamma in found.predicted]
  return Table.of("choose", rows, vars(found), facts={"gin": text})


def _write(table, args):
  return [put(*os.path.split(args.output), table.facts["gin"])]


COMMAND = Command(
  __doc__,
  make,
  {
    **jobs.PAIRS,
    "gammas": [*range(1, 11)],
    "temperature": 0.0,
    **{name: jobs.CELLS[name] for name in ("num_tokens", "runs")},
  },
  write=_write,
)
