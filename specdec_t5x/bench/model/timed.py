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
from specdec_t5x.bench.model.pieces import Piece, program
from specdec_t5x.bench.walltime import alternate

# Repetitions of a piece that are timed beside each other.
_COUNTS = 2, 10


def measure(pieces: Iterable[Piece], runs: int, cells: Cells) -> dict[Piece, float]:
  """Returns the median seconds of a turn of each piece, on this machine.

  Args:
    pieces: what is run, one after the other, with random parameters.
    runs: of each.
    cells: where they are kept.
  """
  found = {}
  for piece in pieces:
    key = {"timed": dataclasses.asdict(piece), "runs": runs, **machine()}
    if (known := cells.find(key)) is None:
      known = {"seconds": seconds(piece, runs)}
      cells.add(key, known)
    found[piece] = known["seconds"]
  return found


def seconds(piece: Piece, runs: int, params: Any = None) -> float:
  """Returns the median seconds of a turn of a piece.

  Args:
    piece: what is run.
    runs: of it.
    params: of the network of a call or an encoder; random ones where None.
  """
  run, arguments = program(piece, params)
  given = jax.block_until_ready(arguments())
  if piece.kind == "encoder":
    timed = alternate({"it": lambda _: run(*given)}, range(runs))
    return float(np.median(timed["it"].seconds))
  repeated = {
    ("it", count): functools.partial(_turns, run, count, given) for count in _COUNTS
  }
  timed = alternate(repeated, range(runs))
  slopes = parts.costs({key: each.seconds for key, each in timed.items()})
  return float(np.median(slopes["it"]))


def _turns(run, count, given, _):
  """Runs so many turns; the first argument is what `pieces` leaves for their number."""
  return run(jnp.int32(count), *given[1:])
