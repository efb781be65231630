"""Bounds of the speed-up by any way to decode on this machine."""

import argparse

import jax
import jax.numpy as jnp

from benchmarks.table import Table, render
from benchmarks.timed import alternate, median_ratio, spread
from specdec_t5x.network import products


def make(name: str, args: argparse.Namespace) -> Table:
  """Times one row and many rows with the same matrix, and one row twice."""
  size = int((args.megabytes * 1e6 / 4) ** 0.5)
  weights = jax.random.normal(jax.random.key(0), (size, size))
  product = jax.jit(lambda x: products.multiply("auto", x, weights)[0])
  one = jnp.ones((1, size))
  many = jnp.ones((args.rows, size))
  programs = {
    "once": lambda _: product(one),
    "again": lambda _: product(one),
    "many": lambda _: product(many),
  }
  timed = alternate(programs, range(args.runs))
  once, again, many = (result.seconds for result in timed.values())
  values = {
    "weights read for one row, GB/s": spread(weights.nbytes / 1e9 / once),
    f"{args.rows} rows multiplied, GFLOP/s": spread(
      2 * args.rows * size**2 / 1e9 / many
    ),
    "one program over itself": median_ratio(once, again),
  }
  rows = [{"of": name, "value": value} for name, value in values.items()]
  return render(name, rows, {"megabytes": args.megabytes})
