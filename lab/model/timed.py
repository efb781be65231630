"""Measured times of the pieces, to compare a model with a real device."""

import dataclasses
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.cells import Cells
from benchmarks.environment import machine
from benchmarks.sizes import t5_1_1
from benchmarks.timed import Program, alternate, repeated, slopes
from lab.model.devices import Device
from lab.model.pieces import Cost, Piece, program
from specdec_t5x.network.products import multiply

# The two counts of repetitions; their difference gives the time of a repetition.
_COUNTS = 2, 10


@dataclasses.dataclass(frozen=True)
class Measured:
  """Measurements of a piece and of products in turn with the piece.

  Other load on the machine slows piece and products alike.
  """

  seconds: float  # Median seconds of a turn.
  # Bytes per second of matrices in products of a single row, with the network's sizes.
  # On a CPU a sum reads more.
  bandwidth: float
  # Operations per second of products with the piece's number of rows. Large products do
  # more.
  peak: float

  def device(self, name: str) -> Device:
    """Returns a device with the bandwidth and peak of the products."""
    return Device(name, self.bandwidth, self.peak)


def measure(
  costs: Mapping[Piece, Cost], runs: int, cells: Cells
) -> dict[Piece, Measured]:
  """Measures a turn of every piece on the current machine.

  Raises:
    ValueError: if the machine is so busy that a turn is lost in noise.
  """
  measured = {}
  for piece, cost in costs.items():
    key = {"beside its products": dataclasses.asdict(piece), "runs": runs, **machine()}

    def run(piece=piece, cost=cost):
      return _beside_products(piece, cost, runs)

    measured[piece] = Measured(**cells.get(key, lambda run=run: vars(run())))
  return measured


def seconds(piece: Piece, runs: int, params: Any = None) -> float:
  """Returns the median seconds of a turn of a piece."""
  return float(np.median(_in_turn(piece, runs, params)["it"]))


def _beside_products(piece, cost, runs):
  row, many = (_products(piece, cost.moved, rows) for rows in (1, _rows(piece)))
  turns = _in_turn(piece, runs, None, row=row[0], many=many[0])
  seconds = {name: float(np.median(times)) for name, times in turns.items()}
  if min(seconds.values()) <= 0:
    raise ValueError(
      f"The time of {piece} is lost in noise: {_COUNTS[1]} repetitions took no longer "
      f"than {_COUNTS[0]}. Leave every core to the measurement, or raise --runs. "
      "Finished measurements are kept."
    )
  moved = row[1]
  flops = many[2]
  return Measured(seconds["it"], moved / seconds["row"], flops / seconds["many"])


def _products(piece, moved, rows) -> tuple[Program, int, int]:
  """Returns a program of feed-forward products that reads about `moved` bytes.

  Returns:
    The program, the bytes of the matrices, and the number of operations.
  """
  config = t5_1_1(piece.size, piece.dtype)
  shape = config.emb_dim, config.mlp_dim
  pair = 2 * np.prod(shape) * jnp.dtype(piece.dtype).itemsize
  shapes = [shape, shape[::-1]] * max(1, round(moved / pair))
  kernels = [jnp.full(s, 1 / s[0], piece.dtype) for s in shapes]

  @jax.jit
  def run(x, kernels):
    for kernel in kernels:
      (x,) = multiply(piece.products, x, kernel)
    return x

  first = jnp.ones((rows, shape[0]), piece.dtype)
  flops = 2 * rows * sum(kernel.size for kernel in kernels)
  return lambda _: run(first, kernels), sum(k.nbytes for k in kernels), flops


def _rows(piece):
  """Returns the rows of a piece's products; an iteration has the rows of its block."""
  width = {"encoder": piece.input_length, "iteration": piece.width + 1}
  return piece.batch * width.get(piece.kind, piece.width)


def _in_turn(piece, runs, params, **others) -> dict[str, np.ndarray]:
  """Returns seconds of a turn of the piece ("it") and of programs in turn with it."""
  run, arguments = program(piece, params)
  inputs = jax.block_until_ready(arguments())
  if piece.kind == "encoder":
    timed = alternate({"it": lambda _: run(*inputs), **others}, range(runs))
    return {name: each.seconds for name, each in timed.items()}
  # The first argument is the number of repetitions.
  loops = repeated({"it": (run, inputs[1:], _COUNTS)})
  timed = alternate({**loops, **others}, range(runs))
  turns = slopes({key: timed[key] for key in loops})
  return {**turns, **{name: timed[name].seconds for name in others}}
