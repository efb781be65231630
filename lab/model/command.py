r"""Models the times of a pair on an absent device, from compiled programs.

  python -m lab model --topology v4:1x1x1 --output runs/model_v4
  python -m lab model --topology cpu --target base --drafts small \
    --widths 1 2 4 8 --batches 1 --output runs/model_cpu
  python -m lab model --topology v5e:1x1 --target xl \
    --drafts int8 int4 int4/32 --widths 1 2 8 --batches 1 --output runs/model_xl

Nothing runs on the device. The TPU compiler (`pip install libtpu`, in the version of
jax's extra `tpu`; no TPU is needed) compiles single tokens, blocks, encoders and whole
iterations. The text of a compiled program gives the bytes moved, the operations and the
compiler's estimate of cycles. The published bandwidth, peak and clock of the device
turn the counts into seconds. The seconds give c, table 2 of the paper and the best
gamma. `cpu` models the CPU of this machine and also times the pieces. Every cell is
written to DIR/cells.jsonl after compilation, so a stopped run can continue.
"""

import argparse
import dataclasses
import pathlib
import sys
from collections.abc import Iterator
from importlib import metadata

import jax

from lab.model import devices, tables, timed
from lab.model.pieces import Cost, Piece, compiled
from specdec_t5x.bench.cells import Cells
from specdec_t5x.bench.command import Command
from specdec_t5x.bench.oracle import ROUNDED
from specdec_t5x.bench.table import Table
from specdec_t5x.environment import code, machine
from specdec_t5x.network.config import DTYPES
from specdec_t5x.network.sizes import SIZES
from specdec_t5x.t5x_bridge.topologies import described

CPU = "cpu"
REFUSED = "refused"
_CLONE = pathlib.Path(__file__).parents[2]
# The sources that build the pieces and read the compiled programs.
READERS = (
  "lab/model/pieces.py",
  "lab/model/work.py",
  "specdec_t5x/analysis/hlo.py",
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
      return _compiled(piece, target)

    cost = cells.get(key, run, args.recorded)
    if REFUSED in (cost or {}):
      refused[piece] = cost[REFUSED]
    elif cost is not None:
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


def _compiled(piece, device):
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


COMMAND = Command(
  __doc__,
  make,
  {
    "topology": ("v4:1x1x1", "topology of a single device, or cpu"),
    "target": ("xxl", "", SIZES),
    "drafts": (
      ["small", "base", "large"],
      "sizes, or the target's own weights rounded",
      (*SIZES, *ROUNDED),
    ),
    "widths": ([1, 2, 4, 6, 8, 16], "widths of blocks"),
    "batches": [1, 4, 16, 64],
    "gamma": (7, "draft length of whole iterations"),
    "input_length": (128, "tokens"),
    "output_length": (128, "tokens"),
    "dtype": (str, "(bfloat16; cpu: float32)", DTYPES),
    "runs": (9, "repetitions of a timed piece"),
    "recorded": False,
  },
)
