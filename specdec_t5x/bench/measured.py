"""What follows from a measured cell: alpha, speeds, and what theory says of them."""

import dataclasses
from collections.abc import Mapping
from typing import Any

import numpy as np

from specdec_t5x.analysis import theory
from specdec_t5x.analysis.acceptance import Estimate, ratio
from specdec_t5x.bench.costs import Costs
from specdec_t5x.bench.walltime import Spread, Timed, median_ratio
from specdec_t5x.core.lenient import Lenient
from specdec_t5x.core.token import Token
from specdec_t5x.core.types import Rule

_COUNTED = (
  "emitted",
  "target_calls",
  "drafted",
  "accepted",
  "acceptance_positions",
  "acceptance_mass",
)


@dataclasses.dataclass(frozen=True)
class Setting:
  """How a cell is decoded; timed beside the plain loop, or only counted."""

  gamma: int
  temperature: float
  lenience: float = 1.0
  timed: bool = True

  @property
  def rule(self) -> Rule:
    """What judges the drafts."""
    return Token() if self.lenience == 1.0 else Lenient(self.lenience)


@dataclasses.dataclass(frozen=True)
class Measured:
  """A cell.

  Attributes:
    setting: how it was decoded.
    columns: numbers of each input, by name: emitted, target_calls, drafted, accepted,
      acceptance_positions, acceptance_mass; where it was timed also seconds,
      plain_seconds, plain_emitted and identical.
    costs: of the parts; None where it was not timed.
  """

  setting: Setting
  columns: Mapping[str, np.ndarray]
  costs: Costs | None

  @classmethod
  def timed(
    cls,
    setting: Setting,
    ours: Timed,
    plain: Timed | None = None,
    costs: Costs | None = None,
  ) -> "Measured":
    """Returns the cell of what a program decoded, beside the plain loop if that ran.

    Args:
      setting: how it decoded.
      ours: its results, `Decoded`.
      plain: the plain loop's, on the same inputs in turn.
      costs: of the parts.
    """
    columns = {name: counts(ours, name) for name in _COUNTED}
    if plain is not None:
      columns |= {
        "seconds": ours.seconds,
        "plain_seconds": plain.seconds,
        "plain_emitted": counts(plain, "emitted"),
        "identical": same_outputs(plain, ours),
      }
    return cls(setting, columns, costs)

  @classmethod
  def of(cls, setting: Setting, result: Mapping[str, Any]) -> "Measured":
    """Returns the cell that `to_result` made a result of."""
    columns = {name: np.array(values) for name, values in result["columns"].items()}
    costs = Costs(**result["costs"]) if result["costs"] else None
    return cls(setting, columns, costs)

  def to_result(self) -> dict[str, Any]:
    """Returns the cell for JSON, without its setting."""
    columns = {name: values.tolist() for name, values in self.columns.items()}
    costs = dataclasses.asdict(self.costs) if self.costs else None
    return {"columns": columns, "costs": costs}

  @property
  def inputs(self) -> int:
    """How many inputs were decoded."""
    return self.columns["emitted"].size

  @property
  def tokens(self) -> int:
    """How many tokens came out."""
    return int(self.columns["emitted"].sum())

  @property
  def alpha(self) -> Estimate:
    """Acceptance by counts: drafted tokens that stood, of those that were tried."""
    return ratio(self.columns["accepted"], self.columns["acceptance_positions"])

  @property
  def alpha_by_mass(self) -> Estimate | None:
    """Acceptance as the mean of sum_x min(p, q); None under rules whose it is not."""
    if not self.setting.rule.alpha_is_mass:
      return None
    return ratio(self.columns["acceptance_mass"], self.columns["acceptance_positions"])

  @property
  def best_alpha(self) -> float | None:
    """The estimate with less noise; None where no drafted token was tried."""
    return (self.alpha_by_mass or self.alpha).value

  @property
  def tokens_per_call(self) -> Estimate:
    """Output tokens a call of the target."""
    return ratio(self.columns["emitted"], self.columns["target_calls"])

  @property
  def speedup(self) -> Spread:
    """Plain seconds a token over ours, whole calls, median input with quartiles."""
    return median_ratio(
      self.columns["plain_seconds"] / self.columns["plain_emitted"],
      self.columns["seconds"] / self.columns["emitted"],
    )

  @property
  def speedup_in_all(self) -> float:
    """The same of all inputs together, which weighs long ones more."""
    total = {name: values.sum() for name, values in self.columns.items()}
    plain = total["plain_seconds"] / total["plain_emitted"]
    return float(plain / (total["seconds"] / total["emitted"]))

  @property
  def predicted(self) -> Spread:
    """What `speedup` should be by the parts' times and the counted calls.

    Plain: encoder + tokens * token. Ours: encoders + calls * (gamma c token + block).
    Of the same inputs as `speedup`, and summed up as it is.
    """
    column, costs = self.columns, self.costs
    return median_ratio(
      costs.plain_seconds(column["plain_emitted"]) / column["plain_emitted"],
      costs.seconds(column["target_calls"]) / column["emitted"],
    )

  @property
  def theorem(self) -> float | None:
    """Theorem 3.8 at our alpha and c: a block costs a token, and nothing is encoded."""
    if self.best_alpha is None:
      return None
    costs = self.costs
    found = theory.walltime_improvement(self.best_alpha, costs.gamma, costs.c)
    return float(found)

  @property
  def with_block(self) -> float | None:
    """Theorem 3.8 with the measured time of a block."""
    if self.best_alpha is None:
      return None
    return float(self.costs.loop_improvement(self.best_alpha))

  @property
  def identical(self) -> int | None:
    """Outputs equal to the plain ones; None where they need not be."""
    if self.setting.temperature or self.setting.lenience != 1.0:
      return None
    return int(self.columns["identical"].sum())

  def row(self) -> dict[str, Any]:
    """Returns what tables show of the cell, by column."""
    counted = {
      "gamma": self.setting.gamma,
      "alpha": self.alpha_by_mass,
      "alpha_by_counts": self.alpha,
      "tokens_per_call": self.tokens_per_call,
      "tokens": self.tokens,
    }
    if self.costs is None:
      return {**counted, "speed": "not timed"}
    same = self.identical
    return {
      **counted,
      "c": self.costs.c,
      "block": self.costs.block / self.costs.plain,
      "theorem": self.theorem,
      "with_block": self.with_block,
      "predicted": self.predicted,
      "speed": self.speedup,
      "in_all": self.speedup_in_all,
      "ratio": self.speedup.median / self.predicted.median,
      "identical": "sampled" if same is None else f"{same}/{self.inputs}",
    }


def counts(timed: Timed, name: str) -> np.ndarray:
  """Returns one of the statistics, summed over the rows, of each input."""
  return np.array([getattr(r.statistics, name).sum().item() for r in timed.results])


def same_outputs(one: Timed, other: Timed) -> np.ndarray:
  """Returns of each input whether two programs' outputs are equal, token for token."""
  pairs = zip(one.results, other.results, strict=True)
  return np.array([bool((a.tokens == b.tokens).all()) for a, b in pairs])
