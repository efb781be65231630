"""Cells: what one way to decode did with inputs, measured once, kept, and what follows.

A cell is found again by its key, which holds every setting that determines it, the
device, the versions and this package's code among them. Nothing is ever taken out of
the file.
"""

import argparse
import dataclasses
import json
import os
import pathlib
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from specdec_t5x.analysis import theory
from specdec_t5x.analysis.acceptance import Estimate, ratio
from specdec_t5x.bench.pairs import Draft, Job, Study
from specdec_t5x.bench.timed import Costs, Spread, Timed, alternate, median_ratio
from specdec_t5x.core.lenient import Lenient
from specdec_t5x.core.token import Token
from specdec_t5x.core.types import Rule

FILE = "cells.jsonl"
PLAIN = "plain"
# Inputs decoded before the tokens are counted. Even, so that over all of them each
# program comes first as often as the other (`timed.alternate`).
_CHUNK = 16
COUNTED = (
  *("emitted", "target_calls", "drafted"),
  *("accepted", "acceptance_positions", "acceptance_mass"),
)

Key = Mapping[str, Any]


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

  @property
  def words(self) -> str:
    """The setting, in a few words."""
    lenience = f", l={self.lenience:g}" if self.lenience != 1.0 else ""
    return f"T={self.temperature:g}, gamma={self.gamma}{lenience}"


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

  def by_theory(self) -> dict[str, float | None]:
    """Returns theorem 3.8 at our alpha and c, and with the measured time of a block.

    In the theorem itself a block costs a token, and nothing is encoded.
    """
    if self.best_alpha is None:
      return {"theorem": None, "with_block": None}
    at = self.best_alpha, self.costs.gamma, self.costs.c
    block = self.costs.loop_improvement(self.best_alpha)
    return {
      "theorem": float(theory.walltime_improvement(*at)),
      "with_block": float(block),
    }

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


def _decodes(result):
  return result if isinstance(result, list) else [result]


def _counts(timed: Timed, name: str) -> np.ndarray:
  """Returns one of the statistics, summed over the rows, of each input."""
  one = lambda decoded: getattr(decoded.statistics, name).sum().item()
  return np.array([sum(map(one, _decodes(result))) for result in timed.results])


def _same_outputs(one: Timed, other: Timed) -> np.ndarray:
  """Returns of each input whether two programs' outputs are equal, token for token."""
  tokens = lambda result: np.concatenate([d.tokens for d in _decodes(result)])
  pairs = zip(one.results, other.results, strict=True)
  return np.array([bool((tokens(a) == tokens(b)).all()) for a, b in pairs])


def joined(columns: Sequence[Mapping[str, np.ndarray]]) -> dict[str, np.ndarray]:
  """Returns the columns of several chunks of inputs as those of all."""
  return {name: np.concatenate([c[name] for c in columns]) for name in columns[0]}


class Cells:
  """The cells of one folder."""

  def __init__(
    self,
    folder: str | os.PathLike,
    report: Callable[[str], None] = lambda text: print(text, file=sys.stderr),
  ):
    self.path = pathlib.Path(folder) / FILE
    self._report = report
    self._asked: set[str] = set()
    self._results, self._whole = self._read()

  def find(self, key: Key) -> dict[str, Any] | None:
    """Returns the result measured with exactly this key, None where there is none."""
    name = _canonical(key)
    self._asked.add(name)
    return self._results.get(name)

  def add(self, key: Key, result: Mapping[str, Any]) -> None:
    """Keeps a result, on the disk before this returns."""
    name = _canonical(key)
    line = json.dumps({"key": json.loads(name), "result": result}) + "\n"
    self.path.parent.mkdir(parents=True, exist_ok=True)
    with self.path.open("a", encoding="utf-8") as file:
      # A line that a killed run left unfinished stays, on a line of its own.
      file.write(line if self._whole else f"\n{line}")
      file.flush()
      os.fsync(file.fileno())
    self._whole = True
    self._results[name] = json.loads(json.dumps(result))

  def get(self, key: Key, measure: Callable[[], Mapping[str, Any]]) -> dict[str, Any]:
    """Returns the result with this key; it is measured, and kept, where it is not."""
    if self.find(key) is None:
      self.add(key, measure())
    return self.find(key)

  def unasked(self) -> int:
    """Returns how many cells `find` was not asked for; 0 if it was for none at all."""
    if not self._asked:
      return 0
    return len(self._results.keys() - self._asked)

  def _read(self):
    if not self.path.exists():
      return {}, True
    text = self.path.read_text(encoding="utf-8", errors="replace")
    results = {}
    for number, line in enumerate(text.split("\n"), start=1):
      if not line.strip():
        continue
      try:
        cell = json.loads(line)
        results[_canonical(cell["key"])] = cell["result"]
      except (ValueError, KeyError, TypeError):
        self._report(
          f"{self.path}, line {number}: not a whole cell, perhaps of a run that was "
          "killed. It is measured again where it is needed; the line stays as it is."
        )
    return results, text.endswith("\n") or not text


def _canonical(key: Key) -> str:
  return json.dumps(key, sort_keys=True)


@dataclasses.dataclass(frozen=True)
class Found:
  """A cell and what it is of; `measured` is None where nothing was to be measured."""

  task: str
  target: str
  draft: str
  setting: Setting
  measured: Measured | None

  @property
  def name(self) -> dict[str, str | float]:
    """What a table's row is of."""
    temperature = self.setting.temperature
    return {"task": self.task, "draft": self.draft, "temperature": temperature}

  @property
  def row(self) -> dict[str, Any]:
    """A table's row; without numbers where nothing was measured."""
    numbers = self.measured.row() if self.measured else {}
    return {**self.name, "gamma": self.setting.gamma, **numbers}


def measure_all(
  args: argparse.Namespace,
  jobs: Iterable[Job],
  settings: Callable[[Draft], Sequence[Setting]],
) -> list[Found]:
  """Returns the cells asked for; each is kept as soon as it is measured.

  Raises:
    ValueError: where what a job names can't be read.
  """
  from tqdm import tqdm  # Accelerators, whose cells are kept too, are without it.

  cells, found = Cells(args.output), []
  for job in jobs:
    study = job.load()
    wanted = [(draft, each) for draft in study.drafts for each in settings(draft)]
    with tqdm(wanted, desc=study.job.task, unit="cell", file=sys.stderr) as bar:
      for draft, setting in bar:
        bar.set_postfix_str(f"{draft.name}, {setting.words}")
        cell = _recall(study, draft, setting, cells)
        if cell is None and not args.recorded:
          cell = measure(study, draft, setting)
          cells.add(study.key(draft, setting), cell.to_result())
        found.append(Found(study.job.task, job.target, draft.name, setting, cell))
  if other := cells.unasked():
    print(
      f"{cells.path} has {other} more cells, of other settings, code or machines; "
      "they are not shown.",
      file=sys.stderr,
    )
  return found


def measure(study: Study, draft: Draft, setting: Setting) -> Measured:
  """Decodes inputs until there are `study.job.num_tokens` tokens, and times the parts.

  Batch 1. Where the setting is timed, every input is also decoded plainly, in turn.
  """
  decoder, params = study.together(draft, setting)
  temperature = setting.temperature
  runs = {"ours": study.program(decoder, params, temperature)}
  if setting.timed:
    runs[PLAIN] = study.plain(temperature)
  chunks = []
  for first in range(0, len(study.inputs), _CHUNK):
    timed = alternate(runs, range(len(study.inputs))[first : first + _CHUNK])
    chunks.append(Measured.timed(setting, timed["ours"], timed.get(PLAIN)).columns)
    if sum(chunk["emitted"].sum() for chunk in chunks) >= study.job.num_tokens:
      break
  costs = None
  if setting.timed:
    costs = study.costs([decoder], params, temperature)[setting.gamma]
  return Measured(setting, joined(chunks), costs)


def _recall(study, draft, setting, cells):
  result = cells.find(study.key(draft, setting))
  if result is None and not setting.timed:
    # A cell that was timed has the same counts.
    timed = dataclasses.replace(setting, timed=True)
    result = cells.find(study.key(draft, timed))
  return None if result is None else Measured.of(setting, result)
