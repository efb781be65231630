"""Measures ways to decode: the same inputs by all ways, in turn in one process.

A run is a description: ways by batch and temperature, and inputs. `measure` yields a
row for each way, compared with plain decoding input by input: seconds per token, and
equal outputs. `table.render` makes a table of rows.
"""

import dataclasses
import itertools
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from benchmarks.timed import Costs, Program, Spread, Timed, alternate, median_ratio
from specdec_t5x.core import theory
from specdec_t5x.core.rules.lenient import Lenient
from specdec_t5x.core.rules.token import Token
from specdec_t5x.core.theory import Estimate, rate, ratio
from specdec_t5x.core.types import Rule

COUNTED = (
  *("emitted", "target_calls", "drafted"),
  *("accepted", "acceptance_positions", "acceptance_mass"),
)
PLAIN = "plain"
# The number of inputs between two counts of the tokens. The number is even, so that
# each of two programs comes first equally often (`timed.alternate`).
_CHUNK = 16


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
  """A cell: the measurement of a way to decode on some inputs."""

  setting: Setting
  # A number per input, by name: those of `COUNTED`, and if timed also seconds,
  # plain_seconds, plain_emitted, and the outputs and identical outputs of the input.
  columns: Mapping[str, np.ndarray]
  costs: Costs | None = None  # The times of the parts, if known.

  @classmethod
  def timed(
    cls, setting: Setting, ours: Timed, plain: Timed | None = None
  ) -> "Measured":
    """Returns the cell of a program's results, compared with plain results if given.

    Without plain results a row of an input is an input of the cell.
    """
    columns = {}
    for name in COUNTED:
      counts = [np.asarray(getattr(x.statistics, name)) for x in ours.results]
      total = np.array([n.sum() for n in counts])
      columns[name] = total if plain else np.hstack(counts)
    if plain is not None:
      pairs = zip(ours.results, plain.results, strict=True)
      same = [(tokens(x) == tokens(y)).all(axis=1) for x, y in pairs]
      columns |= {
        "seconds": ours.seconds,
        "plain_seconds": plain.seconds,
        "plain_emitted": np.array([x.statistics.emitted.sum() for x in plain.results]),
        "identical": np.array([rows.sum() for rows in same]),
        "outputs": np.array([rows.size for rows in same]),
      }
    return cls(setting, columns)

  @property
  def inputs(self) -> int:
    """The number of inputs."""
    return self.columns["emitted"].size

  @property
  def alpha(self) -> Estimate:
    """Acceptance by counts: accepted tokens over tested tokens."""
    return rate(self.columns["accepted"], self.columns["acceptance_positions"])

  @property
  def alpha_by_mass(self) -> Estimate | None:
    """Acceptance as the mean of sum_x min(p, q); None for rules with another alpha."""
    if not self.setting.rule.alpha_is_mass:
      return None
    return rate(self.columns["acceptance_mass"], self.columns["acceptance_positions"])

  @property
  def tokens_per_call(self) -> Estimate:
    """Output tokens per call of the target."""
    return ratio(self.columns["emitted"], self.columns["target_calls"])

  @property
  def pace(self) -> float:
    """Seconds per token of all inputs together, so long outputs weigh more."""
    return float(self.columns["seconds"].sum() / self.columns["emitted"].sum())

  def over(self, seconds: np.ndarray, emitted: np.ndarray) -> Spread:
    """Returns other seconds per token over ours, the median over inputs, quartiles."""
    ours = self.columns["seconds"] / self.columns["emitted"]
    return median_ratio(seconds / emitted, ours)

  @property
  def speedup(self) -> Spread:
    """Plain seconds per token over ours, for whole calls."""
    return self.over(self.columns["plain_seconds"], self.columns["plain_emitted"])

  def row(self) -> dict[str, Any]:
    """Returns the cell's values for tables, by column."""
    columns = self.columns
    row = {
      "alpha": self.alpha_by_mass,
      "alpha_by_counts": self.alpha,
      "tokens_per_call": self.tokens_per_call,
      "tokens": int(columns["emitted"].sum()),
      "drafted": int(columns["drafted"].sum()),
      "runs": self.inputs,
    }
    if "seconds" not in columns:
      return {**row, "speed": "not timed"}
    plain_pace = columns["plain_seconds"].sum() / columns["plain_emitted"].sum()
    is_greedy = not self.setting.temperature and self.setting.lenience == 1.0
    same = f"{columns['identical'].sum()}/{columns['outputs'].sum()}"
    row |= {
      "milliseconds": 1e3 * self.pace,
      "speed": self.speedup,
      "in_all": float(plain_pace) / self.pace,
      "identical": same if is_greedy else "sampled",
    }
    costs = self.costs
    if costs is None:
      return row
    # The speed-up that follows from the parts' times and the counted calls.
    plain = costs.plain_start / columns["plain_emitted"] + costs.plain
    ours = costs.start + columns["target_calls"] * costs.iteration
    predicted = median_ratio(plain, ours / columns["emitted"])
    row |= {
      "c": costs.c,
      "block": costs.block / costs.plain,
      "predicted": predicted,
      "ratio": self.speedup.median / predicted.median,
    }
    # Alpha is the estimate with less noise; None if no drafted token was tested.
    alpha = (self.alpha_by_mass or self.alpha).value
    if alpha is not None:
      # Theorem 3.8: a block is as fast as a token, and encoders take no time.
      theorem = theory.walltime_improvement(alpha, costs.gamma, costs.c)
      row["theorem"] = float(theorem)
      row["with_block"] = float(costs.loop_improvement(alpha))
    return row


@dataclasses.dataclass(frozen=True)
class Way:
  """A way to decode."""

  program: Program  # Decodes an input of the run.
  columns: Mapping[str, Any] = dataclasses.field(default_factory=dict)  # Of the rows.
  decode: Any = None  # The decode whose parts may be timed.


# Ways by key. All ways are compared with the way `PLAIN`.
Ways = Mapping[Any, Way]


@dataclasses.dataclass(frozen=True)
class Run:
  """A measurement."""

  ways: Callable[[float, int], Ways]  # The ways for a temperature and a batch size.
  inputs: Callable[[int], Sequence[Any]]  # The programs' inputs for a batch size.
  temperatures: Sequence[float] = ()  # None are the setting's temperature.
  batches: Sequence[int] = (1,)
  domains: Sequence[str] = ()  # Of each input; none for a single domain.
  # Whether ways are compared with plain decoding in turn, or only counted.
  setting: Setting = Setting(0, 0.0)
  num_tokens: int | None = None  # A way's tokens to stop at; None decodes all inputs.


@dataclasses.dataclass(frozen=True)
class Row:
  """The measurement of a way on the inputs of a domain."""

  key: Any
  way: Way
  batch: int
  domain: str
  cell: Measured
  results: tuple[Any, ...]  # The program's results.

  @property
  def values(self) -> dict[str, Any]:
    """The row's values by column."""
    return {
      "temperature": f"{self.cell.setting.temperature:g}",
      "batch": self.batch,
      "domain": self.domain,
      **self.cell.row(),
      **self.way.columns,
    }


def measure(run: Run) -> Iterator[Row]:
  """Yields a row for each way at each temperature, batch size and domain."""
  temperatures = run.temperatures or [run.setting.temperature]
  for temperature, batch in itertools.product(temperatures, run.batches):
    setting = dataclasses.replace(run.setting, temperature=temperature)
    ways = run.ways(temperature, batch)
    timed = _timed(run, ways, run.inputs(batch))
    domains = run.domains or [""] * len(next(iter(timed.values())).results)
    for domain in dict.fromkeys(domains):
      numbers = [i for i, name in enumerate(domains) if name == domain]
      parts = {
        key: Timed(whole.seconds[numbers], tuple(whole.results[i] for i in numbers))
        for key, whole in timed.items()
      }
      plain = parts.get(PLAIN) if setting.timed else None
      for key, way in ways.items():
        cell = Measured.timed(setting, parts[key], plain)
        yield Row(key, way, batch, domain, cell, parts[key].results)


def tokens(result: Any) -> np.ndarray:
  """Returns the output tokens of one or several decodes, a row per output."""
  decodes = result if isinstance(result, list) else [result]
  return np.concatenate([np.asarray(decoded.tokens) for decoded in decodes])


def _timed(run: Run, ways: Ways, inputs: Sequence[Any]) -> dict[Any, Timed]:
  """Times all ways in turn, on all inputs or on enough inputs for `num_tokens`."""
  programs = {key: way.program for key, way in ways.items()}
  timed = {key: Timed(np.zeros(0), ()) for key in ways}
  step = len(inputs) if run.num_tokens is None else _CHUNK
  for first in range(0, len(inputs), step):
    chunk = inputs[first : first + step]
    for key, part in alternate(programs, chunk, int(run.setting.timed)).items():
      results = map(_wanted, part.results, chunk)
      seconds = np.concatenate([timed[key].seconds, part.seconds])
      timed[key] = Timed(seconds, (*timed[key].results, *results))
    ours = next(key for key in ways if key != PLAIN or len(ways) == 1)
    emitted = sum(int(x.statistics.emitted.sum()) for x in timed[ours].results)
    if run.num_tokens is not None and emitted >= run.num_tokens:
      break
  return timed


def _wanted(result: Any, value: Any) -> Any:
  """Returns tokens and counts on the host, without the rows that pad a group."""
  decodes = result if isinstance(result, list) else [result]
  rows = getattr(value, "rows", None)
  counts = {
    name: np.hstack([getattr(decoded.statistics, name) for decoded in decodes])[:rows]
    for name in COUNTED
  }
  statistics = types.SimpleNamespace(**counts)
  return types.SimpleNamespace(tokens=tokens(result)[:rows], statistics=statistics)
