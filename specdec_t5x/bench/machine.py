"""What this machine can do, which bounds what any way to decode can gain on it.

How fast weights are read for one row, how fast many rows are multiplied, and how far
apart two runs of one program are: less than that between two programs says nothing.
"""

import argparse

import jax
import jax.numpy as jnp
import numpy as np

from specdec_t5x.bench.command import Command, at_least
from specdec_t5x.bench.table import Table
from specdec_t5x.bench.timed import alternate, median_ratio, spread
from specdec_t5x.network import products


def make(args: argparse.Namespace) -> Table:
  """Times one row and many through the same matrix, and one row twice."""
  at_least(args, megabytes=1, rows=1, runs=1)
  size = int((args.megabytes * 1e6 / 4) ** 0.5)
  weights = jax.random.normal(jax.random.key(0), (size, size))
  product = jax.jit(lambda x: products.multiply("auto", x, weights)[0])
  one, many = jnp.ones((1, size)), jnp.ones((args.rows, size))
  runs = {name: lambda _, x=one: product(x) for name in ("once", "again")}
  runs["many"] = lambda _: product(many)
  seconds = {n: each.seconds for n, each in alternate(runs, range(args.runs)).items()}
  read, computed = weights.nbytes / 1e9, 2 * args.rows * size**2 / 1e9
  rate = lambda work, name: spread(np.array(work) / seconds[name])
  rows = [
    {"of": "weights read for one row, GB/s", "value": rate(read, "once")},
    {"of": f"{args.rows} rows multiplied, GFLOP/s", "value": rate(computed, "many")},
    {
      "of": "one program over itself",
      "value": median_ratio(seconds["once"], seconds["again"]),
    },
  ]
  return Table.of("machine", rows, {"megabytes": args.megabytes})


COMMAND = Command(
  __doc__,
  make,
  {
    "megabytes": (256.0, "of the matrix, in float32: more than caches hold"),
    "rows": (64, "that are many"),
    "runs": (20, "of each"),
  },
)
