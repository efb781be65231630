"""The cells of tables 2 and 4: every draft, temperature and gamma, timed."""

import argparse
from typing import Any

from specdec_t5x.bench import flags, jobs
from specdec_t5x.bench.measured import Setting
from specdec_t5x.bench.measuring import Found, measure_all

# Of tables 2 to 5, below what each is.
USAGE = """

  %(prog)s --preset demo --output DIR
  %(prog)s --preset paper --tasks ende --target DIR \\
    --draft T5-small=DIR T5-base=DIR T5-large=DIR --tfds-data-dir DIR --output DIR
  %(prog)s --target DIR --draft NAME=DIR --vocabulary FILE \\
    --inputs FILE --prefix "translate English to German: " --output DIR

Each cell is kept in DIR/cells.jsonl as soon as it is measured: a run that was stopped
goes on where it was, and tables share their cells. Leave all cores to it.
"""
GAMMAS = (1, 3, 5, 7, 10)
ALPHA_NOTE = (
  "alpha is the mean of sum_x min(p, q) over the drafted tokens that were tried, "
  "`by counts` the share of them that stood; [95% interval], inputs as the unit."
)
SPEED_NOTE = (
  "Measured: plain seconds a token over ours, whole calls at batch 1, encoder "
  "included, plain and speculative in turn in one process; median input [quartiles]."
)


def add_flags(parser: argparse.ArgumentParser) -> None:
  """Adds the flags of a table of speeds."""
  flags.add_cells(parser)
  flags.add_temperatures(parser)
  parser.add_argument(
    "--gammas", type=int, nargs="+", default=list(GAMMAS), help="(%(default)s)"
  )


def measure(args: argparse.Namespace) -> list[Found]:
  """Measures every cell that the flags ask for.

  Raises:
    ValueError: where a flag is bad, or what it names is not there.
  """
  settings = [Setting(g, t) for t in args.temperatures for g in args.gammas]
  return measure_all(args, jobs.from_flags(args), lambda draft: settings)


def settings(args: argparse.Namespace, found: list[Found]) -> dict[str, Any]:
  """Returns what a table was made with, for JSON."""
  names = ("temperatures", "gammas", "num_tokens", "runs", "task", "dtype")
  sizes = {each.task: each.measured.inputs for each in found if each.measured}
  return {**jobs.known(args), **{n: getattr(args, n) for n in names}, "inputs": sizes}
