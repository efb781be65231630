"""The best gamma for a pair on this device, as gin lines."""

import dataclasses
from collections.abc import Mapping, Sequence

import numpy as np

from specdec_t5x.analysis.acceptance import Estimate
from specdec_t5x.bench.costs import Costs, online_settings
from specdec_t5x.bench.decode import pair_costs
from specdec_t5x.bench.environment import machine
from specdec_t5x.bench.measuring import measure
from specdec_t5x.bench.study import Draft, Setting, Study
from specdec_t5x.decoding.widths import block_widths


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
  needed = {*gammas, *(max(width - 1, 1) for width in widths)}
  settings = [Setting(gamma, temperature) for gamma in sorted(needed)]
  pairs, params = zip(*(study.together(draft, s) for s in settings), strict=True)
  given = study.inputs[0], study.sampling(settings[0]), study.max_length, study.runs
  costs = pair_costs(pairs, params[0], *given)
  tokens = float(np.mean(counted.columns["emitted"]))
  predicted = {
    gamma: float(costs[gamma].call_improvement(alpha.value, tokens))
    for gamma in sorted(set(gammas))
  }
  return Choice(alpha, tokens, costs, predicted, widths)


def markdown(choice: Choice) -> str:
  """Returns the prediction for each gamma."""
  lines = [
    f"alpha {choice.alpha.value:.3f}, {choice.tokens:.1f} tokens an output",
    "",
    "| gamma | c | block / token | loop alone | whole calls |",
    "|---|---|---|---|---|",
  ]
  for gamma, speed in choice.predicted.items():
    costs = choice.costs[gamma]
    mark = " (best)" if gamma == choice.gamma else ""
    lines.append(
      f"| {gamma}{mark} | {costs.c:.3f} | {costs.block / costs.plain:.2f} | "
      f"{costs.loop_improvement(choice.alpha.value):.2f} | {speed:.2f} |"
    )
  return "\n".join(lines) + "\n"


def gin_lines(
  choice: Choice, study: Study, draft: Draft, temperature: float, online: bool
) -> str:
  """Returns a gin file for after configs/spec_*.gin.

  Args:
    choice: what was found.
    study: what was decoded.
    draft: the way to draft.
    temperature: it was measured at.
    online: whether GAMMA_POLICY='online' is active, and not the best fixed gamma.
  """
  costs = online_settings(choice.costs, choice.widths)
  longest = choice.widths[-1] - 1
  blocks = ", ".join(f"{cost:.4g}" for cost in costs["block_costs"])
  policy = [
    f"GAMMA = {longest}",
    "GAMMA_POLICY = 'online'",
    f"DRAFT_COST = {costs['draft_cost']:.4g}",
    f"BLOCK_COSTS = ({blocks},)",
  ]
  best = [f"GAMMA = {choice.gamma}", "GAMMA_POLICY = 'fixed'"]
  active, other = (policy, best) if online else (best, policy)
  found = machine()
  speeds = ", ".join(f"{g}: {speed:.2f}" for g, speed in choice.predicted.items())
  about = [
    f"Draft length for {study.task}, draft {draft.name}, at T = {temperature:g}.",
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
