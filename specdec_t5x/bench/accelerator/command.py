r"""What speculation does on this accelerator, with random weights, in 25 minutes.

  scripts/bench_accelerator.sh --output runs/accelerator

Needs JAX, Flax, jaxtyping and NumPy; no checkpoint, no data, no seqio, TensorFlow or
T5X. The most telling cells come first, each is kept in DIR/cells.jsonl as soon as it is
measured, and none is started after --minutes: what was not reached says `not measured`,
and the same command goes on where it was. Pieces: a network's call on 1, 2 and gamma +
1 tokens, and an encoder, beside the roofline of what this device was seen to read and
multiply. Loops: plain and speculative turns in turn, and whole calls of a draft that is
right with the paper's alphas (`drafters.oracle`). On a GPU the loops also run with
command buffers that hold whole loops. Last, what the profiler saw.
"""

import argparse
import dataclasses
import itertools
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from specdec_t5x.analysis import theory
from specdec_t5x.bench.accelerator import tables
from specdec_t5x.bench.accelerator.profile import top_costs
from specdec_t5x.bench.cells import Cells
from specdec_t5x.bench.command import Command
from specdec_t5x.bench.environment import machine
from specdec_t5x.bench.measured import Measured, Setting
from specdec_t5x.bench.model import devices, timed
from specdec_t5x.bench.model.pieces import Piece, compiled
from specdec_t5x.bench.oracle import Pair, Setup
from specdec_t5x.bench.paper import published
from specdec_t5x.bench.programs import random_model
from specdec_t5x.bench.table import Table
from specdec_t5x.bench.table import plain as plain_row
from specdec_t5x.bench.timed import Timed, alternate, repeated, slopes
from specdec_t5x.network.config import DTYPES
from specdec_t5x.network.sizes import SIZES

# What a GPU records as command buffers unless told otherwise (XLA's own list, in
# debug_options_flags.cc), and with loops. As options of a program the whole list has to
# be given: `+WHILE`, as in XLA_FLAGS, is refused.
_DEFAULT = "FUSION,CUBLAS,CUBLASLT,CUSTOM_CALL,CUDNN,DYNAMIC_SLICE_FUSION"
_NAME, _LEAST = "xla_gpu_enable_command_buffer", "xla_gpu_graph_min_graph_size"
BUFFERS = {
  "gpu": {
    "as it is": {},
    "none": {_NAME: ""},
    "while": {_NAME: f"{_DEFAULT},WHILE", _LEAST: 2},
    "while, conditional": {_NAME: f"{_DEFAULT},WHILE,CONDITIONAL", _LEAST: 2},
  }
}
_PROFILED = 4  # Iterations.
# Runs before the clock starts: a GPU records its command buffers in a program's second.
_WARM = 3

# A cell: its key, and what measures it.
Cell = tuple[dict[str, Any], Callable[[], Any]]


def make(args: argparse.Namespace) -> Table:
  """Measures what there is time for and returns the tables."""
  end = time.monotonic() + 60 * args.minutes
  cells, found = Cells(args.output), {}
  for key, measure in _cells(args):
    full = {**key, "runs": args.runs, **machine()}
    is_late = args.recorded or time.monotonic() >= end
    result = cells.get(full, lambda key=key, run=measure: _tried(key, run), is_late)
    found[tables.words(key)] = key, result
  return tables.table(args, found)


def alphas(draft: str, temperature: float) -> list[float]:
  """Returns the paper's alphas of a draft, by whatever task; of others, T5-base's."""
  rows = published.numbers()["tables_2_and_4"]
  known = {row["draft"] for row in rows}
  name = f"T5-{draft}" if f"T5-{draft}" in known else "T5-base"
  at = (name, int(temperature > 0))
  return sorted({r["alpha"] for r in rows if (r["draft"], r["temperature"]) == at})


def _cells(args) -> Iterator[Cell]:
  """Yields all cells, the most telling first."""
  yield {"device": "this one"}, lambda: vars(devices.measured(args.dtype))
  first, *others = _setups(args)
  yield _loops(first, args.runs)
  for batch in args.batches:
    for piece in _pieces(args, batch):
      key = {"piece": dataclasses.asdict(piece)}
      yield key, lambda piece=piece: _piece(piece, args)
    if batch == args.batches[0]:
      yield from _looked_into(first, args)
  yield from (_loops(setup, args.runs) for setup in others)


def _looked_into(first: Setup, args) -> Iterator[Cell]:
  known = {"loop": dataclasses.asdict(first)}
  for name, options in BUFFERS.get(jax.default_backend(), {}).items():
    loops = lambda options=options: repeated(Pair(first, options).loops())
    measure = lambda loops=loops: medians(alternate(loops(), range(args.runs), _WARM))
    yield {"buffers": name, **known}, measure

  def profile():
    pair = Pair(first)
    run = lambda: pair.program(jnp.int32(_PROFILED), pair.forced, *pair.given)
    return {"rows": top_costs(run)}

  yield {"profile": "ours", **known}, profile


def _setups(args) -> list[Setup]:
  """Returns all pairs: those that differ least from the first come first."""
  axes = (args.targets, args.drafts, args.batches, args.temperatures, args.gammas)
  distance = lambda each: sum(place for place, _ in each)
  order = sorted(itertools.product(*map(enumerate, axes)), key=distance)
  rest = args.dtype, args.input_length, args.output_length
  return [Setup(*(value for _, value in each), *rest) for each in order]


def _loops(setup: Setup, runs: int) -> Cell:
  wanted = alphas(setup.draft, setup.temperature)
  key = {"loop": dataclasses.asdict(setup), "alphas": wanted}
  return key, lambda: measured(setup, wanted, runs)


def measured(setup: Setup, alphas: Sequence[float], runs: int) -> dict[str, Any]:
  """Returns what a pair's loops take.

  Returns:
    Seconds of an "iteration" and of a "plain" token, and by alpha under "calls" the
    speed-up of whole calls: measured at temperature 0, where the oracle sets alpha, and
    "from_loops", which is E(alpha, gamma) plain / iteration.
  """
  pair = Pair(setup)
  calls = {} if setup.temperature else {a: pair.calls(a, runs) for a in alphas}
  timed = alternate({**repeated(pair.loops()), **calls}, range(runs), _WARM)
  plain, timed_calls = (
    timed["plain", setup.max_length],
    {a: timed.pop(a) for a in calls},
  )
  each, rows = medians(timed), {}
  for alpha in alphas:
    expected = float(theory.expected_tokens(alpha, setup.gamma))
    row = {"from_loops": expected * each["plain"] / each["iteration"]}
    if alpha in calls:
      cell = Measured.timed(Setting(setup.gamma, 0.0), timed_calls[alpha], plain)
      row |= plain_row(cell.row())
    rows[f"{alpha:g}"] = row
  return {**each, "calls": rows}


def medians(timed: Mapping[tuple[str, int], Timed]) -> dict[str, float]:
  """Returns the median seconds of a repetition of each loop."""
  return {name: float(np.median(each)) for name, each in slopes(timed).items()}


def _pieces(args, batch) -> Iterator[Piece]:
  lengths = {"input_length": args.input_length, "max_length": args.output_length}
  piece = lambda kind, size, width: Piece(
    kind, size, width, batch, dtype=args.dtype, **lengths
  )
  for size in (args.targets[0], *args.drafts):
    widths = [1, 2, args.gammas[0] + 1] if size == args.targets[0] else [1, 2]
    yield from (piece("call", size, width) for width in widths)
    yield piece("encoder", size, 0)


def _piece(piece, args) -> Mapping[str, Any]:
  cost = compiled(piece, jax.devices()[0])
  params = random_model(piece.size, piece.dtype).params
  seconds = timed.seconds(piece, args.runs, params)
  return {**dataclasses.asdict(cost), "seconds": seconds}


def _tried(key, measure: Callable[[], Any]) -> Any:
  """Returns what was measured; None, and says why, where the device can't do it."""
  print(tables.words(key), file=sys.stderr, flush=True)
  try:
    return measure()
  except jax.errors.JaxRuntimeError as error:
    print(f"  not measured: {str(error).splitlines()[0][:200]}", file=sys.stderr)
    return None


COMMAND = Command(
  __doc__,
  make,
  {
    "targets": (["xxl", "xl"], "the first is looked into", SIZES),
    "drafts": (["small", "base"], "sizes", SIZES),
    "gammas": ([7, 5, 3, 1, 10, 2, 4, 6, 8, 9], "the first is looked into"),
    "batches": ([1, 4, 16], "rows"),
    "temperatures": [0.0, 1.0],
    "input_length": (128, "tokens"),
    "output_length": (128, "tokens"),
    "dtype": ("bfloat16", "", DTYPES),
    "runs": (5, "of each program"),
    "minutes": (25.0, "no cell starts later"),
    "recorded": False,
  },
)
