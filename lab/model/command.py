"""Models the times of a pair on an absent device, from compiled programs."""

import argparse
import dataclasses
import pathlib
import sys
from collections.abc import Iterator
from importlib import metadata

import jax

from benchmarks.cells import Cells
from benchmarks.command import Command
from benchmarks.environment import code, machine
from benchmarks.oracle import ROUNDED
from benchmarks.table import Table
from lab.model import devices, tables, timed
from lab.model.pieces import Cost, Piece, compiled
from lab.model.topologies import described

CPU = "cpu"
REFUSED = "refused"
_CLONE = pathlib.Path(__file__).parents[2]
# The sources that build the pieces and read the compiled programs.
READERS = (
  "lab/model/pieces.py",
  "lab/model/work.py",
  "lab/model/hlo.py",
)


def make(args: argparse.Namespace) -> Table:
  """Compiles the pieces that the flags name and returns the tables."""
  if min(args.widths) != 1 or min(args.batches) != 1:
    raise ValueError(
      "Expected width 1 (the unit of c) and batch 1 (the paper's), got --widths "
      f"{args.widths} and --batches {args.batches}. Add 1 to --widths and --batches."
    )
  # Compiling for another device must not initialize an accelerator of this machine.
  jax.config.update("jax_platforms", "cpu")
  is_cpu = args.topology == CPU
  target = jax.devices("cpu")[0] if is_cpu else described(args.topology)[0]
  cells = Cells(args.output)
  model = _device(args.topology, cells)
  costs = {}
  refused = {}
  for piece in _pieces(args):
    key = {**_compilers(args.topology), **vars(piece)}

    def run(piece=piece):
      return cost_of(piece, target)

    cost = cells.get(key, run)
    if REFUSED in cost:
      refused[piece] = cost[REFUSED]
    else:
      costs[piece] = Cost(**cost)
  seconds = timed.measure(costs, args.runs, cells) if is_cpu else {}
  return tables.table(args, model, costs, seconds, refused)


def _pieces(args) -> Iterator[Piece]:
  """Yields the pieces to compile; the pieces for c and table 2 come first."""
  lengths = {"input_length": args.input_length, "max_length": args.output_length}
  dtype = args.dtype or ("float32" if args.topology == CPU else "bfloat16")
  # On other devices XLA multiplies, so codes keep the layout without native kernels.
  products = "auto" if args.topology == CPU else "xla"
  settings = {"dtype": dtype, "products": products, **lengths}

  def piece(*shape, **options):
    return Piece(*shape, **settings, **options)

  for batch in sorted(args.batches):
    for width in sorted({1, 2} & {*args.widths}):
      for draft in args.drafts:
        if draft in ROUNDED:
          yield piece("call", args.target, width, batch, draft=draft)
        else:
          yield piece("call", draft, width, batch)
    for width in sorted(args.widths):
      yield piece("call", args.target, width, batch)
    if batch == 1:
      for draft in args.drafts:
        yield piece("iteration", args.target, args.gamma, batch, draft=draft)
    for size in (*args.drafts, args.target):
      if size not in ROUNDED:
        yield piece("encoder", size, 0, batch)


def cost_of(piece, device):
  """Returns the cost of a piece, or the compiler's error if memory is exhausted."""
  print(piece, file=sys.stderr, flush=True)
  try:
    return dataclasses.asdict(compiled(piece, device))
  except jax.errors.JaxRuntimeError as error:
    if "RESOURCE_EXHAUSTED" not in str(error):
      raise
    return {REFUSED: str(error).splitlines()[0]}


def _compilers(topology):
  """Returns the topology, sources and versions that determine compiled programs."""
  versions = {name: metadata.version(name) for name in ("jax", "jaxlib")}
  if topology != CPU:
    versions["libtpu"] = metadata.version("libtpu")
  sources = {"code": machine()["code"], "readers": code(_CLONE, READERS)}
  return {"topology": topology, **sources, **versions}


def _device(topology, cells):
  if topology != CPU:
    return devices.TPUS[topology.partition(":")[0]]

  def measured():
    return vars(devices.measured("float32"))

  return devices.Device(**cells.get({"device": machine()}, measured))


COMMAND = Command("model", make, package="lab")
