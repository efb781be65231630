"""The measurement of a way to decode, as numbers and as a table's row."""

import dataclasses
from collections.abc import Mapping
from typing import Any

import numpy as np

from benchmarks.costs import Costs
from benchmarks.timed import Spread, Timed, median_ratio
from specdec_t5x.analysis import theory
from specdec_t5x.analysis.acceptance import Estimate, ratio
from specdec_t5x.core.rules.lenient import Lenient
from specdec_t5x.core.rules.token import Token
from specdec_t5x.core.types import Rule

COUNTED = (
  *("emitted", "target_calls", "drafted"),
  *("accepted", "acceptance_positions", "acceptance_mass"),
)


@dataclasses.dataclass(frozen=True)
class Setting:
  """The settings of a cell, timed in turn with the plain loop or only counted."""

  gamma: int
  temperature: float
  lenience: float = 1.0
  timed: bool = True

  @property
  def rule(self) -> Rule:
    """The verification rule."""
    return Token() if self.lenience == 1.0 else Lenient(self.lenience)


@dataclasses.dataclass(frozen=True)
class Measured:
  """A cell.

  Attributes:
    setting: the settings.
    columns: arrays with a number per input, by name: those of `COUNTED`, and if timed
      also seconds, plain_seconds, plain_emitted and identical.
    costs: the times of the parts; None if not timed.
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
    """Returns the cell of a program's results, compared with plain results if given."""
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
    """Returns the cell of a result of `to_result`."""
    columns = {name: np.array(values) for name, values in result["columns"].items()}
    costs = Costs(**result["costs"]) if result["costs"] else None
    return cls(setting, columns, costs)

  def to_result(self) -> dict[str, Any]:
    """Returns the cell without the setting, for JSON."""
    columns = {name: values.tolist() for name, values in self.columns.items()}
    costs = dataclasses.asdict(self.costs) if self.costs else None
    return {"columns": columns, "costs": costs}

  @property
  def inputs(self) -> int:
    """The number of inputs."""
    return self.columns["emitted"].size

  @property
  def tokens(self) -> int:
    """The number of output tokens."""
    return int(self.columns["emitted"].sum())

  @property
  def alpha(self) -> Estimate:
    """Acceptance by counts: accepted tokens over tested tokens."""
    return ratio(self.columns["accepted"], self.columns["acceptance_positions"])

  @property
  def alpha_by_mass(self) -> Estimate | None:
    """Acceptance as the mean of sum_x min(p, q); None for rules with another alpha."""
    if not self.setting.rule.alpha_is_mass:
      return None
    return ratio(self.columns["acceptance_mass"], self.columns["acceptance_positions"])

  @property
  def tokens_per_call(self) -> Estimate:
    """Output tokens per call of the target."""
    return ratio(self.columns["emitted"], self.columns["target_calls"])

  @property
  def plain(self) -> "Measured":
    """The cell of the plain loop's seconds and tokens."""
    columns = {n: self.columns[f"plain_{n}"] for n in ("seconds", "emitted")}
    return Measured(self.setting, columns)

  def over(self, other: "Measured") -> Spread:
    """Returns the other cell's seconds per token over ours, the median over inputs."""
    theirs = other.columns["seconds"] / other.columns["emitted"]
    return median_ratio(theirs, self.columns["seconds"] / self.columns["emitted"])

  @property
  def speedup(self) -> Spread:
    """Plain seconds per token over ours, for calls; median over inputs, quartiles."""
    return self.over(self.plain)

  @property
  def pace(self) -> float:
    """Seconds per token of all inputs together, so long outputs weigh more."""
    return float(self.columns["seconds"].sum() / self.columns["emitted"].sum())

  @property
  def speedup_in_all(self) -> float:
    """Plain seconds per token over ours, of all inputs together."""
    return self.plain.pace / self.pace

  @property
  def predicted(self) -> Spread:
    """The prediction of `speedup` from the parts' times and the counted calls.

    Plain: encoder + tokens * token. Ours: encoders + calls * (gamma c token + block).
    The inputs and the summary are those of `speedup`.
    """
    columns = self.columns
    plain = self.costs.plain_seconds(columns["plain_emitted"])
    ours = self.costs.seconds(columns["target_calls"])
    return median_ratio(plain / columns["plain_emitted"], ours / columns["emitted"])

  def by_theory(self) -> dict[str, float | None]:
    """Returns theorem 3.8 at our alpha and c, and with the measured time of a block.

    In the theorem a block is as fast as a token, and encoders take no time. Alpha is
    the estimate with less noise.
    """
    alpha = (self.alpha_by_mass or self.alpha).value
    if alpha is None:  # No drafted token was tested.
      return {"theorem": None, "with_block": None}
    theorem = theory.walltime_improvement(alpha, self.costs.gamma, self.costs.c)
    with_block = self.costs.loop_improvement(alpha)
    return {"theorem": float(theorem), "with_block": float(with_block)}

  @property
  def equal(self) -> str:
    """The number of outputs equal to plain outputs; "sampled" if not greedy."""
    if self.setting.temperature or self.setting.lenience != 1.0:
      return "sampled"
    return f"{int(self.columns['identical'].sum())}/{self.inputs}"

  def row(self) -> dict[str, Any]:
    """Returns the cell's values for tables, by column."""
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


def tokens(result: Any) -> np.ndarray:
  """Returns the output tokens of one or several decodes, a row per output."""
  return np.concatenate([decoded.tokens for decoded in _decodes(result)])


def _decodes(result):
  return result if isinstance(result, list) else [result]


def _counts(timed: Timed, name: str) -> np.ndarray:
  """Returns a statistic of each input, summed over the rows."""
  totals = []
  for result in timed.results:
    counts = [getattr(decoded.statistics, name) for decoded in _decodes(result)]
    totals.append(sum(count.sum().item() for count in counts))
  return np.array(totals)


def _same_outputs(one: Timed, other: Timed) -> np.ndarray:
  """Returns, per input, whether two programs' outputs are equal, token for token."""
  pairs = zip(one.results, other.results, strict=True)
  return np.array([bool((tokens(a) == tokens(b)).all()) for a, b in pairs])
