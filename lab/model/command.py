r"""Models a pair's pieces on a device that is not there, from the compiled programs.

  python -m lab model --topology v4:1x1x1 --output runs/model_v4
  python -m lab model --topology cpu --target base --drafts small \
    --widths 1 2 4 8 --batches 1 --output runs/model_cpu
  python -m lab model --topology v5e:1x1 --target xl \
    --drafts int8 int4 int4/32 --widths 1 2 8 --batches 1 --output runs/model_xl

Nothing runs on the device. A TPU's own compiler (`pip install libtpu`, of the version
that jax's extra `tpu` names; no TPU is needed) compiles one token, blocks, encoders and
whole iterations; of the compiled programs are read the bytes that they move, the
operations that they do and the compiler's estimate of its cycles. With the device's
published bandwidth, peak and clock these give seconds, hence c, table 2 of the paper
and the gamma that would pay. `cpu`: this machine's, whose pieces are also timed. Each
cell is kept in DIR/cells.jsonl as soon as it is compiled: a run that was stopped goes
on.
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
from specdec_t5x.bench.environment import code, machine
from specdec_t5x.bench.oracle import ROUNDED
from specdec_t5x.bench.table import Table
from specdec_t5x.network.config import DTYPES
from specdec_t5x.network.sizes import SIZES
from specdec_t5x.t5x_bridge.topologies import described

CPU, REFUSED = "cpu", "refused"
_CLONE = pathlib.Path(__file__).parents[2]
# The sources that make the pieces and read what they were compiled to.
READERS = (
  "lab/model/pieces.py",
  "lab/model/work.py",
  "specdec_t5x/analysis/hlo.py",
)


def make(args: argparse.Namespace) -> Table:
  """Compiles what the flags ask for and returns the tables."""
  if min(args.widths) != 1 or min(args.batches) != 1:
    raise ValueError(
      "Expected width 1, which blocks are compared with, and batch 1, the paper's, got "
      f"--widths {args.widths} and --batches {args.batches}."
    )
  # Compiling for others is no reason to wake this machine's accelerator.
  jax.config.update("jax_platforms", "cpu")
  is_cpu = args.topology == CPU
  target = jax.devices("cpu")[0] if is_cpu else described(args.topology)[0]
  cells = Cells(args.output)
  model = _device(args.topology, cells)
  found, refused = {}, {}
  for piece in _pieces(args):
    key = {**_compilers(args.topology), **vars(piece)}

    def run(piece=piece):
      return _compiled(piece, target)

    cost = cells.get(key, run, args.recorded)
    if REFUSED in (cost or {}):
      refused[piece] = cost[REFUSED]
    elif cost is not None:
      found[piece] = Cost(**cost)
  seconds = timed.measure(found, args.runs, cells) if is_cpu else {}
  return tables.table(args, model, found, seconds, refused)


def _pieces(args) -> Iterator[Piece]:
  """Yields what is compiled: first what c and table 2 need."""
  lengths = {"input_length": args.input_length, "max_length": args.output_length}
  dtype = args.dtype or ("float32" if args.topology == CPU else "bfloat16")
  # Elsewhere no product is our own kernels', which codes would be laid out for.
  products = "auto" if args.topology == CPU else "xla"
  how = {"dtype": dtype, "products": products, **lengths}

  def piece(*what, **more):
    return Piece(*what, **how, **more)

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
  """Returns a piece's cost, or why the compiler refuses it: too large, in the end."""
  print(piece, file=sys.stderr, flush=True)
  try:
    return dataclasses.asdict(compiled(piece, device))
  except jax.errors.JaxRuntimeError as error:
    if "RESOURCE_EXHAUSTED" not in str(error):
      raise
    return {REFUSED: str(error).splitlines()[0]}


def _compilers(topology):
  """Returns what a compiled program depends on, beside the piece."""
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
    "topology": ("v4:1x1x1", "of one device, or cpu"),
    "target": ("xxl", "", SIZES),
    "drafts": (
      ["small", "base", "large"],
      "sizes, or the target's own weights rounded",
      (*SIZES, *ROUNDED),
    ),
    "widths": ([1, 2, 4, 6, 8, 16], "of blocks"),
    "batches": [1, 4, 16, 64],
    "gamma": (7, "of whole iterations"),
    "input_length": (128, "tokens"),
    "output_length": (128, "tokens"),
    "dtype": (str, "(bfloat16; cpu: float32)", DTYPES),
    "runs": (9, "of each piece that is timed"),
    "recorded": False,
  },
)
