"""What a way to decode did with inputs, as numbers and as a table's row."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from specdec_t5x.analysis import theory
from specdec_t5x.analysis.acceptance import Estimate, ratio
from specdec_t5x.bench.costs import Costs
from specdec_t5x.bench.timed import Spread, Timed, median_ratio
from specdec_t5x.core.lenient import Lenient
from specdec_t5x.core.token import Token
from specdec_t5x.core.types import Rule

COUNTED = (
  *("emitted", "target_calls", "drafted"),
  *("accepted", "acceptance_positions", "acceptance_mass"),
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
    columns: numbers of each input, by name: those of `COUNTED`; where it was timed also
      seconds, plain_seconds, plain_emitted and identical.
    costs: of the parts; None where they were not timed.
  """

  setting: Setting
  columns: Mapping[str, np.ndarray]
  costs: Costs | None = None

  @classmethod
  def timed(
    cls,
    setting: Setting,
    ours: Timed,
    plain: Timed | None = None,
    costs: Costs | None = None,
  ) -> "Measured":
    """Returns the cell of what a program decoded, beside the plain loop if that ran."""
    columns = {name: _counts(ours, name) for name in COUNTED}
    if plain is not None:
      columns |= {
        "seconds": ours.seconds,
        "plain_seconds": plain.seconds,
        "plain_emitted": _counts(plain, "emitted"),
        "identical": _same_outputs(plain, ours),
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
    """Acceptance as the mean of sum_x min(p, q); None under rules with another one."""
    if not self.setting.rule.alpha_is_mass:
      return None
    return ratio(self.columns["acceptance_mass"], self.columns["acceptance_positions"])

  @property
  def tokens_per_call(self) -> Estimate:
    """Output tokens a call of the target."""
    return ratio(self.columns["emitted"], self.columns["target_calls"])

  @property
  def plain(self) -> "Measured":
    """The plain loop's seconds and tokens, as those of a cell."""
    columns = {n: self.columns[f"plain_{n}"] for n in ("seconds", "emitted")}
    return Measured(self.setting, columns)

  def over(self, other: "Measured") -> Spread:
    """Returns another's seconds a token over ours, the median input's."""
    theirs = other.columns["seconds"] / other.columns["emitted"]
    return median_ratio(theirs, self.columns["seconds"] / self.columns["emitted"])

  @property
  def speedup(self) -> Spread:
    """Plain seconds a token over ours, whole calls, median input with quartiles."""
    return self.over(self.plain)

  @property
  def pace(self) -> float:
    """Seconds a token of all inputs together, which weighs long ones more."""
    return float(self.columns["seconds"].sum() / self.columns["emitted"].sum())

  @property
  def speedup_in_all(self) -> float:
    """Plain seconds a token over ours of all inputs together."""
    return self.plain.pace / self.pace

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

  def by_theory(self) -> dict[str, float | None]:
    """Returns theorem 3.8 at our alpha and c, and with the measured time of a block.

    In the theorem itself a block costs a token, and nothing is encoded. Alpha is the
    estimate with less noise.
    """
    alpha = (self.alpha_by_mass or self.alpha).value
    if alpha is None:  # No drafted token was tried.
      return {"theorem": None, "with_block": None}
    theorem = theory.walltime_improvement(alpha, self.costs.gamma, self.costs.c)
    with_block = self.costs.loop_improvement(alpha)
    return {"theorem": float(theorem), "with_block": float(with_block)}

  @property
  def equal(self) -> str:
    """How many outputs equal the plain ones; where they need not, "sampled"."""
    if self.setting.temperature or self.setting.lenience != 1.0:
      return "sampled"
    return f"{int(self.columns['identical'].sum())}/{self.inputs}"

  def row(self) -> dict[str, Any]:
    """Returns what tables show of the cell, by column."""
    row = {
      "alpha": self.alpha_by_mass,
      "alpha_by_counts": self.alpha,
      "tokens_per_call": self.tokens_per_call,
      "tokens": self.tokens,
      "drafted": int(self.columns["drafted"].sum()),
      "runs": self.inputs,
    }
    if "seconds" not in self.columns:
      return {**row, "speed": "not timed"}
    row |= {
      "milliseconds": 1e3 * self.pace,
      "speed": self.speedup,
      "in_all": self.speedup_in_all,
      "identical": self.equal,
    }
    if self.costs is None:
      return row
    return {
      **row,
      **self.by_theory(),
      "c": self.costs.c,
      "block": self.costs.block / self.costs.plain,
      "predicted": self.predicted,
      "ratio": self.speedup.median / self.predicted.median,
    }


def joined(columns: Sequence[Mapping[str, np.ndarray]]) -> dict[str, np.ndarray]:
  """Returns the columns of several chunks of inputs as those of all."""
  return {name: np.concatenate([c[name] for c in columns]) for name in columns[0]}


def tokens(result: Any) -> np.ndarray:
  """Returns the output tokens of a decode, or of several, a row each."""
  return np.concatenate([decoded.tokens for decoded in _decodes(result)])


def _decodes(result):
  return result if isinstance(result, list) else [result]


def _counts(timed: Timed, name: str) -> np.ndarray:
  """Returns one of the statistics, summed over the rows, of each input."""
  found = []
  for result in timed.results:
    counts = [getattr(each.statistics, name) for each in _decodes(result)]
    found.append(sum(count.sum().item() for count in counts))
  return np.array(found)


def _same_outputs(one: Timed, other: Timed) -> np.ndarray:
  """Returns of each input whether two programs' outputs are equal, token for token."""
  pairs = zip(one.results, other.results, strict=True)
  return np.array([bool((tokens(a) == tokens(b)).all()) for a, b in pairs])
