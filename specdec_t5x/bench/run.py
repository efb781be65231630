"""A run is data: ways to decode, inputs, batch sizes, temperatures and repetitions.

`measure` decodes the same inputs by all ways of a run, in turn in one process, and
returns a row for each way; `table.render` makes a table of rows.
"""

import dataclasses
import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from specdec_t5x.bench.costs import Costs
from specdec_t5x.bench.measured import COUNTED, Measured, Setting, joined
from specdec_t5x.bench.study import BATCH, Decode, Study, batches
from specdec_t5x.bench.timed import Program, Timed, alternate

PLAIN = "plain"
# Inputs decoded before the tokens are counted. Even, so that over all of them each
# program comes first as often as the other (`timed.alternate`).
_CHUNK = 16


@dataclasses.dataclass(frozen=True)
class Way:
  """A way to decode.

  Attributes:
    decode: how; None where only `program` knows.
    program: decodes one of the run's inputs; None decodes an input of its study.
    columns: values of the rows, beside the measured ones.
    costs: of the parts, where they are known.
    shown: the measured columns of the rows; None is all.
  """

  decode: Decode | None = None
  program: Program | None = None
  columns: Mapping[str, Any] = dataclasses.field(default_factory=dict)
  costs: Costs | None = None
  shown: Sequence[str] | None = None


_UNSET = Setting(0, 0.0)
# Ways by key; `PLAIN` is the one that others are compared with.
Ways = Mapping[Any, Way]


@dataclasses.dataclass(frozen=True)
class Run:
  """What is measured.

  Attributes:
    ways: returns the ways at a temperature and a batch size.
    study: the target and the inputs of ways that have no program.
    inputs: returns what programs take, by batch size; None: the numbers of the study's
      inputs, or of the repetitions where there is no study.
    temperatures: of the sampling.
    batches: rows at once.
    repetitions: calls of a program that takes no input.
    domains: the domain of each input; empty where there is one domain.
    setting: of the cells, but for the temperature.
    num_tokens: enough output tokens of a way; None decodes all inputs.
    timed: whether ways are timed, in turn; otherwise only counted.
    seed: of decodes that are only counted.
  """

  ways: Callable[[float, int], Ways]
  study: Study | None = None
  inputs: Callable[[int], Sequence[Any]] | None = None
  temperatures: Sequence[float] = (0.0,)
  batches: Sequence[int] = (1,)
  repetitions: int = 1
  domains: Sequence[str] = ()
  setting: Setting = _UNSET
  num_tokens: int | None = None
  timed: bool = True
  seed: int = 0


@dataclasses.dataclass(frozen=True)
class Row:
  """What one way did with the inputs of a domain.

  Attributes:
    key: of the way.
    way: how they were decoded.
    batch: rows at once.
    domain: of the inputs.
    cell: what was measured.
    results: of the program; empty where nothing was timed.
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
  for temperature, batch in itertools.product(run.temperatures, run.batches):
    setting = dataclasses.replace(run.setting, temperature=temperature)
    ways = run.ways(temperature, batch)
    if not run.timed:
      for key, way in ways.items():
        cell = _counted(run, way, setting, batch)
        yield Row(key, way, batch, "", cell)
      continue
    timed = _timed(run, ways, batch)
    for domain in dict.fromkeys(run.domains) or [""]:
      of_domain = {key: _of(each, run.domains, domain) for key, each in timed.items()}
      for key, way in ways.items():
        ours, plain = of_domain[key], of_domain.get(PLAIN)
        cell = Measured.timed(setting, ours, plain, way.costs)
        yield Row(key, way, batch, domain, cell, ours.results)


def compare(
  runs: Mapping[Any, Program], inputs: Sequence[Any], setting: Setting
) -> dict[Any, Measured]:
  """Returns what programs do with inputs, in turn, the plain one among them."""
  ways = {key: Way(program=program) for key, program in runs.items()}
  run = Run(
    lambda temperature, batch: ways,
    inputs=lambda batch: inputs,
    temperatures=(setting.temperature,),
    setting=setting,
  )
  return {row.key: row.cell for row in measure(run)}


def _timed(run: Run, ways: Ways, batch: int) -> dict[Any, Timed]:
  """Returns what all ways do with the inputs, or with enough inputs, in turn."""
  count = len(run.study.inputs) if run.study else run.repetitions
  inputs = run.inputs(batch) if run.inputs else range(count)
  programs = {key: w.program or run.study.program(w.decode) for key, w in ways.items()}
  if run.num_tokens is None:
    return alternate(programs, inputs)
  chunks, emitted = [], 0
  for first in range(0, len(inputs), _CHUNK):
    chunks.append(alternate(programs, inputs[first : first + _CHUNK]))
    ours = next(each for key, each in chunks[-1].items() if key != PLAIN)
    emitted += sum(int(each.statistics.emitted.sum()) for each in ours.results)
    if emitted >= run.num_tokens:
      break
  return {key: _joined([chunk[key] for chunk in chunks]) for key in programs}


def _joined(chunks: Sequence[Timed]) -> Timed:
  results = [result for chunk in chunks for result in chunk.results]
  return Timed(np.concatenate([chunk.seconds for chunk in chunks]), tuple(results))


def _of(timed: Timed, domains: Sequence[str], domain: str) -> Timed:
  """Returns what was done with the inputs of a domain."""
  if not domains:
    return timed
  where = [number for number, name in enumerate(domains) if name == domain]
  return Timed(timed.seconds[where], tuple(timed.results[number] for number in where))


def _counted(run: Run, way: Way, setting: Setting, batch: int) -> Measured:
  """Returns the counts of all inputs, each input a unit."""
  columns = [
    {name: np.asarray(getattr(each.statistics, name))[:rows] for name in COUNTED}
    for _, each, rows in batches(way.decode, run.study.ids, batch or BATCH, run.seed)
  ]
  return Measured(setting, joined(columns))
