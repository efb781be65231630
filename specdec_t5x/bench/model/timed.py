"""The same pieces, run: how good a model is where there is a device to ask."""

import dataclasses
import functools
from collections.abc import Iterable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from specdec_t5x.bench import parts
from specdec_t5x.bench.cells import Cells
from specdec_t5x.bench.environment import machine
from specdec_t5x.bench.model import devices
from specdec_t5x.bench.model.pieces import Piece, program
from specdec_t5x.bench.walltime import alternate

# Repetitions of a piece that are timed beside each other.
_COUNTS = 2, 10


@dataclasses.dataclass(frozen=True)
class Measured:
  """A piece that was run.

  Attributes:
    seconds: of a turn, the median.
    bandwidth: bytes a second of a sum over a gigabyte that ran in turn with it, the
      median: what else the machine did, it did to both.
  """

  seconds: float
  bandwidth: float


def measure(pieces: Iterable[Piece], runs: int, cells: Cells) -> dict[Piece, Measured]:
  """Returns what a turn of each piece takes on this machine.

  Args:
    pieces: what is run, one after the other, with random parameters.
    runs: of each.
    cells: where they are kept.
  """
  found = {}
  for piece in pieces:
    key = {"timed": dataclasses.asdict(piece), "runs": runs, **machine()}
    if (known := cells.find(key)) is None:
      known = dataclasses.asdict(measured(piece, runs))
      cells.add(key, known)
    found[piece] = Measured(**known)
  return found


def measured(piece: Piece, runs: int, params: Any = None) -> Measured:
  """Returns what a turn of a piece takes.

  Args:
    piece: what is run.
    runs: of it.
    params: of the network of a call or an encoder; random ones where None.
  """
  run, arguments = program(piece, params)
  given = jax.block_until_ready(arguments())
  read = {"read": devices.reading(piece.dtype)}
  if piece.kind == "encoder":
    timed = alternate({"it": lambda _: run(*given), **read}, range(runs))
    turn = timed["it"].seconds
  else:
    repeated = {
      ("it", count): functools.partial(_turns, run, count, given) for count in _COUNTS
    }
    timed = alternate({**repeated, **read}, range(runs))
    turn = parts.costs({key: timed[key].seconds for key in repeated})["it"]
  bandwidth = devices.READ / np.median(timed["read"].seconds)
  return Measured(float(np.median(turn)), float(bandwidth))


def _turns(run, count, given, _):
  """Runs so many turns; the first argument is what `pieces` leaves for their number."""
  return run(jnp.int32(count), *given[1:])
