"""Devices of the model: bandwidth, peak and clock.

Bandwidth and peak (bfloat16) of TPU chips are published on Google Cloud's pages
"TPU v4", "TPU v5e", "TPU v5p" and "TPU v6e" (docs.cloud.google.com/tpu/docs). The clock
is the peak over the operations of the matrix units in a cycle. A unit of size n does
2 n^2 operations. A v4 and a v5p have 8 units of n = 128, a v5e 4 units of 128, a v6e 4
units of 256 (Google's page has said 2 and 4 at different times). (The v4's clock agrees
with the 1.05 GHz of Jouppi et al. 2023, "TPU v4", table 4.)
"""

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from benchmarks.timed import alternate


@dataclasses.dataclass(frozen=True)
class Device:
  """The speed of a device."""

  name: str  # Name of the kind of device.
  bandwidth: float  # Bytes per second of the large memory.
  peak: float  # Operations per second.
  # Cycles per second of the compiler's estimates; 0 without estimates.
  clock: float = 0.0


# TPUs by the first part of a topology's name.
TPUS = {
  "v4": Device("TPU v4", 1228e9, 275e12, 1.05e9),
  "v5e": Device("TPU v5e", 819e9, 197e12, 1.5e9),
  "v5p": Device("TPU v5p", 2765e9, 459e12, 1.75e9),
  "v6e": Device("TPU v6e", 1640e9, 918e12, 1.75e9),
}
READ = 2**30  # Bytes.
SIDE = 4096  # Rows and columns of the matrices.
_RUNS = 7


def measured(dtype: str) -> Device:
  """Measures the bandwidth and peak of JAX's default device.

  The bandwidth is the best of a few sums over a gigabyte. The peak is the best of a few
  products of 4096 x 4096 matrices.
  """
  square = jnp.ones((SIDE, SIDE), dtype)
  product = jax.jit(jnp.dot)
  multiply = _least(lambda _: product(square, square))
  name = f"{jax.devices()[0].device_kind}, measured"
  return Device(name, READ / _least(_reading(dtype)), 2 * SIDE**3 / multiply)


def _reading(dtype) -> Callable[[Any], Any]:
  kind = jnp.dtype(dtype)
  numbers = jnp.ones(READ // kind.itemsize, kind)
  total = jax.jit(lambda x: x.sum(dtype=jnp.float32))
  return lambda _: total(numbers)


def _least(run) -> float:
  return float(alternate({"it": run}, range(_RUNS))["it"].seconds.min())
