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
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import jax

from specdec_t5x.bench.accelerator import loops, tables
from specdec_t5x.bench.accelerator.loops import Loop
from specdec_t5x.bench.accelerator.profile import top_costs
from specdec_t5x.bench.cells import Cells
from specdec_t5x.bench.command import Command
from specdec_t5x.bench.environment import machine
from specdec_t5x.bench.model import devices, timed
from specdec_t5x.bench.model.pieces import Piece, compiled
from specdec_t5x.bench.paper import published
from specdec_t5x.bench.table import Table
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
# Turns that are profiled.
_PROFILED = 4

# A cell: its key, and what measures it.
Cell = tuple[dict[str, Any], Callable[[], Any]]


def make(args: argparse.Namespace) -> Table:
  """Measures what there is time for and returns the tables."""
  end = time.monotonic() + 60 * args.minutes
  cells, found = Cells(args.output), {}
  for key, measure in _cells(args):
    full = {**key, "runs": args.runs, **machine()}
    result = cells.find(full)
    if result is None and not args.recorded and time.monotonic() < end:
      print(tables.words(key), file=sys.stderr, flush=True)
      result = _tried(measure)
      if result is not None:
        cells.add(full, result)
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
  first = _loop(args, args.targets[0], args.drafts[0], 1, 0.0, args.gammas[0])
  yield _loop_cell(first, args)
  for batch in args.batches:
    for piece in _pieces(args, batch):
      yield (
        {"piece": dataclasses.asdict(piece)},
        lambda piece=piece: _piece(piece, args),
      )
    if batch == args.batches[0]:
      yield from _looked_into(first, args)
  for loop in _loops(args):
    if loop != first:
      yield _loop_cell(loop, args)


def _looked_into(loop, args):
  known = {"loop": dataclasses.asdict(loop)}
  for name, options in BUFFERS.get(jax.default_backend(), {}).items():
    run = lambda options=options: loops.turns(loop, options, args.runs)
    yield {"buffers": name, **known}, run
  profiled = lambda pair: {"rows": top_costs(lambda: pair.ours(_PROFILED))}
  yield {"profile": "ours", **known}, lambda: profiled(loops.Pair(loop))


def _loops(args) -> list[Loop]:
  """Returns all loops: those that differ least from the first come first."""
  axes = (args.targets, args.drafts, args.batches, args.temperatures, args.gammas)
  distance = lambda each: sum(place for place, _ in each)
  order = sorted(itertools.product(*map(enumerate, axes)), key=distance)
  return [_loop(args, *(value for _, value in each)) for each in order]


def _loop(args, *what) -> Loop:
  return Loop(*what, args.dtype, args.input_length, args.output_length)


def _loop_cell(loop, args) -> Cell:
  wanted = alphas(loop.draft, loop.temperature)
  key = {"loop": dataclasses.asdict(loop), "alphas": wanted}
  return key, lambda: loops.measured(loop, wanted, args.runs)


def _pieces(args, batch) -> Iterator[Piece]:
  lengths = {"input_length": args.input_length, "room": args.output_length}
  piece = lambda kind, size, width: Piece(
    kind, size, width, batch, dtype=args.dtype, **lengths
  )
  for size in (args.targets[0], *args.drafts):
    widths = [1, 2, args.gammas[0] + 1] if size == args.targets[0] else [1, 2]
    yield from (piece("call", size, width) for width in widths)
    yield piece("encoder", size, 0)


def _piece(piece, args) -> Mapping[str, Any]:
  cost = compiled(piece, jax.devices()[0])
  params = loops.model(piece.size, piece.dtype).params
  seconds = timed.seconds(piece, args.runs, params)
  return {**dataclasses.asdict(cost), "seconds": seconds}


def _tried(measure) -> Any:
  """Returns what was measured; None, and says why, where the device can't do it."""
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
