"""Devices as a model sees them: what they move and compute in a second.

Of TPUs, what is published of a chip: bandwidth and peak (bfloat16) on Google Cloud's
pages "TPU v4", "TPU v5e", "TPU v5p" and "TPU v6e" (docs.cloud.google.com/tpu/docs). The
clock is the peak over what a chip's matrix units do in a cycle, 2 n^2 each: 8 units of
n = 128 in a v4 and a v5p, 4 of 128 in a v5e; of a v6e, whose page has said 2 and 4
units of 256 in turn, 4. (For the v4 that gives the 1.05 GHz of Jouppi et al. 2023,
"TPU v4", table 4.)
"""

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from specdec_t5x.bench.timed import alternate


@dataclasses.dataclass(frozen=True)
class Device:
  """A device of a model.

  Attributes:
    name: of its kind.
    bandwidth: of its large memory, bytes a second.
    peak: operations a second.
    clock: cycles a second, of the compiler's estimates; 0 where it makes none.
  """

  name: str
  bandwidth: float
  peak: float
  clock: float = 0.0


# By the first part of a topology's name.
TPUS = {
  "v4": Device("TPU v4", 1228e9, 275e12, 1.05e9),
  "v5e": Device("TPU v5e", 819e9, 197e12, 1.5e9),
  "v5p": Device("TPU v5p", 2765e9, 459e12, 1.75e9),
  "v6e": Device("TPU v6e", 1640e9, 918e12, 1.75e9),
}
_READ, _SIDE, _RUNS = 2**30, 4096, 7  # Bytes; a square's side.


def measured(dtype: str) -> Device:
  """Returns the device that programs run on: what it reads and multiplies, measured.

  The best of a few runs of a sum over a gigabyte, and of a product of 4096 squared.
  """
  square = jnp.ones((_SIDE, _SIDE), dtype)
  product = jax.jit(jnp.dot)
  multiply = _least(lambda _: product(square, square))
  name = f"{jax.devices()[0].device_kind}, measured"
  return Device(name, _READ / _least(_reading(dtype)), 2 * _SIDE**3 / multiply)


def _reading(dtype) -> Callable[[Any], Any]:
  kind = jnp.dtype(dtype)
  numbers = jnp.ones(_READ // kind.itemsize, kind)
  total = jax.jit(lambda x: x.sum(dtype=jnp.float32))
  return lambda _: total(numbers)


def _least(run) -> float:
  return float(alternate({"it": run}, range(_RUNS))["it"].seconds.min())
