"""The cells of tables 2 and 4: every draft, temperature and gamma, timed."""

import argparse
import dataclasses
from collections.abc import Iterator, Mapping
from typing import Any

from specdec_t5x.bench import flags, jobs
from specdec_t5x.bench.cells import Cells
from specdec_t5x.bench.measured import Measured
from specdec_t5x.bench.measuring import measure_all
from specdec_t5x.bench.paper import published
from specdec_t5x.bench.study import Setting

GAMMAS = (1, 3, 5, 7, 10)
ALPHA_NOTE = (
  "alpha is the mean of sum_x min(p, q) over the drafted tokens that were tried, "
  "`by counts` the share of them that stood; [95% interval], inputs as the unit."
)
SPEED_NOTE = (
  "Measured: plain seconds a token over ours, whole calls at batch 1, encoder "
  "included, plain and speculative in turn in one process; median input [quartiles]."
)


@dataclasses.dataclass(frozen=True)
class Speed:
  """A cell and what it is of."""

  task: str
  draft: str
  setting: Setting
  cell: Measured | None


def add_flags(parser: argparse.ArgumentParser) -> None:
  """Adds the flags of a table of speeds."""
  flags.add_pairs(parser)
  flags.add_measuring(parser)
  flags.add_temperatures(parser)
  parser.add_argument(
    "--gammas", type=int, nargs="+", default=list(GAMMAS), help="(%(default)s)"
  )


def measure(args: argparse.Namespace, cells: Cells) -> list[Speed]:
  """Measures every cell that the flags ask for.

  Raises:
    ValueError: where a flag is bad, or what it names is not there.
  """
  return list(_measured(args, cells, jobs.from_flags(args)))


def settings(args: argparse.Namespace, speeds: list[Speed]) -> dict[str, Any]:
  """Returns what a table was made with, for JSON."""
  names = ("temperatures", "gammas", "num_tokens", "runs", "task", "dtype")
  found = {name: getattr(args, name) for name in names if hasattr(args, name)}
  sizes = {s.task: s.cell.inputs for s in speeds if s.cell}
  known = {"preset": jobs.preset(args), "models": jobs.models(args)}
  return {**known, **found, "inputs": sizes}


def paper_row(
  args: argparse.Namespace, task: str, draft: str, temperature: float
) -> Mapping[str, Any] | None:
  """Returns the paper's row of tables 2 and 4 for the same models, if it has one.

  The same by name: the demo's have other ones, and --task is "yours" by default.
  """
  if jobs.preset(args) == "demo":
    return None
  names = ("task", "draft", "temperature")
  wanted = (task, draft, temperature)
  rows = published.numbers()["tables_2_and_4"]
  return next((r for r in rows if tuple(r[n] for n in names) == wanted), None)


def _measured(args, cells, wanted) -> Iterator[Speed]:
  for job in wanted:
    study = job.load()
    requests = [
      (draft, Setting(gamma, temperature))
      for draft in study.drafts
      for temperature in args.temperatures
      for gamma in args.gammas
    ]
    found = measure_all(study, requests, cells, args.recorded)
    for (draft, setting), cell in found.items():
      yield Speed(study.task, draft, setting, cell)
