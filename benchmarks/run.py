"""Runs as data: ways to decode, inputs, batch sizes, temperatures and repetitions.

`measure` decodes the same inputs by all ways of a run, in turn in one process, and
yields a row for each way. `table.render` makes a table of rows.
"""

import dataclasses
import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from benchmarks.costs import Costs
from benchmarks.measured import COUNTED, Measured, Setting
from benchmarks.study import BATCH, Decode, Study, batches
from benchmarks.timed import Program, Timed, alternate

PLAIN = "plain"
# The number of inputs between two counts of the tokens. The number is even, so that
# each of two programs comes first equally often (`timed.alternate`).
_CHUNK = 16


@dataclasses.dataclass(frozen=True)
class Way:
  """A way to decode.

  Attributes:
    decode: the decode; None if only `program` is known.
    program: a program that decodes an input of the run; None decodes the study's input.
    columns: values of the rows besides measured values.
    costs: the times of the parts, if known.
    shown: the measured columns of the rows; None is all.
  """

  decode: Decode | None = None
  program: Program | None = None
  columns: Mapping[str, Any] = dataclasses.field(default_factory=dict)
  costs: Costs | None = None
  shown: Sequence[str] | None = None


_UNSET = Setting(0, 0.0)
# Ways by key. All ways are compared with the way `PLAIN`.
Ways = Mapping[Any, Way]


@dataclasses.dataclass(frozen=True)
class Run:
  """A measurement.

  Attributes:
    ways: returns the ways for a temperature and a batch size.
    study: the target and the inputs of ways without a program.
    inputs: returns the programs' inputs for a batch size. None passes the numbers of
      the study's inputs, or of the repetitions if there is no study.
    temperatures: the sampling's temperatures; empty for the setting's temperature.
    batches: the batch sizes.
    repetitions: the number of calls of a program without inputs.
    domains: the domain of each input; empty for a single domain.
    setting: the cells' setting; `temperatures` replace the temperature.
    num_tokens: the number of a way's output tokens to stop at; None decodes all inputs.
    timed: whether to time ways in turn, or only to count.
    seed: the seed of decodes that are only counted.
  """

  ways: Callable[[float, int], Ways]
  study: Study | None = None
  inputs: Callable[[int], Sequence[Any]] | None = None
  temperatures: Sequence[float] = ()
  batches: Sequence[int] = (1,)
  repetitions: int = 1
  domains: Sequence[str] = ()
  setting: Setting = _UNSET
  num_tokens: int | None = None
  timed: bool = True
  seed: int = 0


@dataclasses.dataclass(frozen=True)
class Row:
  """The measurement of a way on the inputs of a domain.

  Attributes:
    key: the way's key.
    way: the way to decode.
    batch: the batch size.
    domain: the inputs' domain.
    cell: the measurement.
    results: the program's results; empty if not timed.
  """

  key: Any
  way: Way
  batch: int
  domain: str
  cell: Measured
  results: tuple[Any, ...] = ()

  @property
  def values(self) -> dict[str, Any]:
    """The row's values by column."""
    measured = self.cell.row()
    if self.way.shown is not None:
      measured = {name: measured[name] for name in self.way.shown}
    temperature = f"{self.cell.setting.temperature:g}"
    return {"temperature": temperature, **measured, **self.way.columns}


def measure(run: Run) -> Iterator[Row]:
  """Yields a row for each way at each temperature, batch size and domain."""
  temperatures = run.temperatures or [run.setting.temperature]
  for temperature, batch in itertools.product(temperatures, run.batches):
    setting = dataclasses.replace(run.setting, temperature=temperature)
    ways = run.ways(temperature, batch)
    if not run.timed:
      for key, way in ways.items():
        cell = _counted(run, way, setting, batch)
        yield Row(key, way, batch, "", cell)
      continue
    timed = _timed(run, ways, batch)
    for domain in dict.fromkeys(run.domains) or [""]:
      parts = {key: _of(t, run.domains, domain) for key, t in timed.items()}
      for key, way in ways.items():
        ours = parts[key]
        cell = Measured.timed(setting, ours, parts.get(PLAIN), way.costs)
        yield Row(key, way, batch, domain, cell, ours.results)


def compare(
  runs: Mapping[Any, Program], inputs: Sequence[Any], setting: Setting
) -> dict[Any, Measured]:
  """Returns the measurements of programs that run in turn, with `PLAIN` among them."""
  ways = {key: Way(program=program) for key, program in runs.items()}
  run = Run(lambda *_: ways, inputs=lambda batch: inputs, setting=setting)
  return {row.key: row.cell for row in measure(run)}


def _timed(run: Run, ways: Ways, batch: int) -> dict[Any, Timed]:
  """Times all ways in turn, on all inputs or on enough inputs for `num_tokens`."""
  count = len(run.study.inputs) if run.study else run.repetitions
  inputs = run.inputs(batch) if run.inputs else range(count)
  programs = {key: w.program or run.study.program(w.decode) for key, w in ways.items()}
  if run.num_tokens is None:
    return alternate(programs, inputs)
  chunks = []
  emitted = 0
  for first in range(0, len(inputs), _CHUNK):
    chunks.append(alternate(programs, inputs[first : first + _CHUNK]))
    ours = next(part for key, part in chunks[-1].items() if key != PLAIN)
    emitted += sum(int(result.statistics.emitted.sum()) for result in ours.results)
    if emitted >= run.num_tokens:
      break
  return {key: _joined([chunk[key] for chunk in chunks]) for key in programs}


def _joined(chunks: Sequence[Timed]) -> Timed:
  results = [result for chunk in chunks for result in chunk.results]
  return Timed(np.concatenate([chunk.seconds for chunk in chunks]), tuple(results))


def _of(timed: Timed, domains: Sequence[str], domain: str) -> Timed:
  """Returns the times and results of a domain's inputs."""
  if not domains:
    return timed
  numbers = [number for number, name in enumerate(domains) if name == domain]
  results = tuple(timed.results[number] for number in numbers)
  return Timed(timed.seconds[numbers], results)


def _counted(run: Run, way: Way, setting: Setting, batch: int) -> Measured:
  """Returns the counts of each input."""
  columns = {name: [] for name in COUNTED}
  for _, decoded, rows in batches(way.decode, run.study.ids, batch or BATCH, run.seed):
    for name, counts in columns.items():
      counts.append(np.asarray(getattr(decoded.statistics, name))[:rows])
  return Measured(setting, {n: np.concatenate(c) for n, c in columns.items()})
