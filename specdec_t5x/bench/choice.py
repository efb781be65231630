r"""Measures a pair on this device and writes the best GAMMA to a gin file.

  python -m specdec_t5x.bench choose-gamma --preset demo --tasks ende \
    --output runs/gamma.gin
  python -m specdec_t5x.bench choose-gamma --target DIR --draft NAME=DIR \
    --vocabulary FILE --inputs FILE --prefix "translate English to German: " \
    --temperature 1 --output my_gamma.gin
  python -m t5x.infer --gin_file=configs/spec_ende.gin --gin_file=my_gamma.gin

Prints the speed-up that is predicted for each gamma, from alpha and the measured cost
of a draft step, of each block and of the encoders. With --online the file includes
configs/policies/online.gin, with the costs that it needs. Leave all cores to it.
"""

import argparse
import dataclasses
from collections.abc import Mapping, Sequence

import numpy as np
from etils import epath

from specdec_t5x.analysis.acceptance import Estimate
from specdec_t5x.bench import flags, jobs
from specdec_t5x.bench.command import Command
from specdec_t5x.bench.costs import Costs, gammas_of, online_settings
from specdec_t5x.bench.environment import machine
from specdec_t5x.bench.measured import Setting
from specdec_t5x.bench.measuring import measure
from specdec_t5x.bench.study import Draft, Study
from specdec_t5x.bench.table import Column, Table
from specdec_t5x.decoding.widths import block_widths

_COLUMNS = (
  Column("gamma", "gamma"),
  Column("c", "c", 3),
  Column("block", "block / token"),
  Column("loop", "loop alone"),
  Column("calls", "whole calls"),
)


@dataclasses.dataclass(frozen=True)
class Choice:
  """What was measured, and what follows.

  Attributes:
    alpha: acceptance, by mass.
    tokens: mean length of an output.
    costs: of the parts, by gamma.
    predicted: speed-up of whole calls, by gamma.
    widths: of blocks, for drafts of up to the largest gamma.
  """

  alpha: Estimate
  tokens: float
  costs: Mapping[int, Costs]
  predicted: Mapping[int, float]
  widths: tuple[int, ...]

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

  Args:
    study: what is decoded.
    draft: the way to draft.
    gammas: to choose from.
    temperature: of both laws.

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
  widths = block_widths(max(gammas))
  needed = {*gammas, *gammas_of(widths)}
  settings = [Setting(gamma, temperature) for gamma in sorted(needed)]
  decoders, params = zip(*(study.together(draft, s) for s in settings), strict=True)
  costs = study.costs(decoders, params[0], temperature)
  tokens = float(np.mean(counted.columns["emitted"]))
  predicted = {
    gamma: float(costs[gamma].call_improvement(alpha.value, tokens))
    for gamma in sorted(set(gammas))
  }
  return Choice(alpha, tokens, costs, predicted, widths)


def table(choice: Choice) -> Table:
  """Returns the prediction for each gamma."""
  alpha, rows = choice.alpha.value, []
  for gamma, speed in choice.predicted.items():
    costs = choice.costs[gamma]
    rows.append(
      {
        "gamma": f"{gamma} (best)" if gamma == choice.gamma else gamma,
        "c": costs.c,
        "block": costs.block / costs.plain,
        "loop": float(costs.loop_improvement(alpha)),
        "calls": speed,
      }
    )
  title = f"alpha {alpha:.3f}, {choice.tokens:.1f} tokens an output"
  return Table("gamma", title, _COLUMNS, rows)


def gin_lines(
  choice: Choice, study: Study, draft: Draft, temperature: float, online: bool
) -> str:
  """Returns a gin file for after configs/spec_*.gin.

  Args:
    choice: what was found.
    study: what was decoded.
    draft: the way to draft.
    temperature: it was measured at.
    online: whether the online policy is active, and not the best fixed gamma.
  """
  costs = online_settings(choice.costs, choice.widths)
  longest = choice.widths[-1] - 1
  blocks = tuple(float(f"{cost:.4g}") for cost in costs["block_costs"])
  policy = [
    "include 'configs/policies/online.gin'",
    f"GAMMA = {longest}",
    f"DRAFT_COST = {costs['draft_cost']:.4g}",
    f"BLOCK_COSTS = {blocks}",
  ]
  best = [f"GAMMA = {choice.gamma}", "GAMMA_POLICY = 'fixed'"]
  active, other = (policy, best) if online else (best, policy)
  found = machine()
  speeds = ", ".join(f"{g}: {speed:.2f}" for g, speed in choice.predicted.items())
  about = [
    f"Draft length for {study.job.task}, draft {draft.name}, at T = {temperature:g}.",
    "For after configs/spec_*.gin: --gin_file=configs/spec_ende.gin --gin_file=THIS",
    f"Measured at batch 1 on {found['device']}, {found['cores']} cores, jax "
    f"{found['jax']}: alpha {choice.alpha.value:.3f}.",
    f"Predicted speed-up of whole calls by gamma: {speeds}.",
  ]
  if choice.predicted[choice.gamma] < 1:
    about.append("No gamma is predicted to pay: configs/baseline_*.gin are faster.")
  name = "The best fixed gamma" if online else "Or a length for each draft"
  lines = [*(f"# {line}" for line in about), *active, f"# {name}:"]
  return "\n".join([*lines, *(f"# {line}" for line in other)]) + "\n"


def add_flags(parser: argparse.ArgumentParser) -> None:
  """Adds the command's flags."""
  flags.add_pairs(parser)
  add = parser.add_argument
  add("--gammas", type=int, nargs="+", default=[*range(1, 11)], help="(%(default)s)")
  add("--temperature", type=float, default=0.0, help="(%(default)s)")
  add("--num-tokens", type=int, help="output tokens for alpha (2000; paper: 10000)")
  add("--runs", type=int, default=15, help="of each part's clock (%(default)s)")
  add("--online", action="store_true", help="activate the online policy")
  add("--output", metavar="FILE", required=True, help="the gin file")


def make(args: argparse.Namespace) -> Table:
  """Measures what the flags say and returns the prediction, and the file's text."""
  study = jobs.from_flags(args)[0].load()
  draft = study.drafts[0]
  found = choose(study, draft, args.gammas, args.temperature)
  text = gin_lines(found, study, draft, args.temperature, args.online)
  return dataclasses.replace(table(found), facts={"gin": text})


def _write(table, args):
  path = epath.Path(args.output)
  path.parent.mkdir(parents=True, exist_ok=True)
  path.write_text(table.facts["gin"])
  return [args.output]


COMMAND = Command(__doc__, make, add_flags, _write)
