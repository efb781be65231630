"""Bounds of the speed-up by any way to decode, from the machine's products."""

import argparse
import functools

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.command import Command, at_least
from benchmarks.table import Table, listed, render
from benchmarks.timed import alternate, median_ratio, spread
from specdec_t5x.native import library
from specdec_t5x.network import certified, products

_MACHINE = """Bounds of the speed-up by any way to decode on this machine.

Measures the speed of reading weights for one row and of multiplying many rows, and the
difference of two runs of a program; a smaller difference of two programs is noise.
"""
_HEAD = r"""Times full and certified logits of a large vocabulary, for greedy decoding.

  python -m benchmarks head --vocab-size 250112 --width 512 --output DIR

Weights and features are random, so more logits are close to the largest logit than with
trained weights. The products run in turn, and each reads the full matrix again.
"""


def _machine(args: argparse.Namespace) -> Table:
  """Times one row and many rows with the same matrix, and one row twice."""
  at_least(args, megabytes=1, rows=1, runs=1)
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
  seconds = {name: result.seconds for name, result in timed.items()}
  values = {
    "weights read for one row, GB/s": spread(weights.nbytes / 1e9 / seconds["once"]),
    f"{args.rows} rows multiplied, GFLOP/s": spread(
      2 * args.rows * size**2 / 1e9 / seconds["many"]
    ),
    "one program over itself": median_ratio(seconds["once"], seconds["again"]),
  }
  rows = [{"of": name, "value": value} for name, value in values.items()]
  return render("machine", rows, {"megabytes": args.megabytes})


def _head(args: argparse.Namespace) -> Table:
  """Times the full and the certified head for each number of rows."""
  at_least(args, vocab_size=1, width=1, runs=1)
  if reason := library.problem():
    raise ValueError(f"A certified head needs native products: {reason}.")
  weights = jax.random.normal(jax.random.key(0), (args.width, args.vocab_size))
  params = {"decoder": {"logits_dense": {"kernel": weights}}}
  params = certified.within(params, certified.screen(params))
  kernel = params["decoder"]["logits_dense"]["kernel"]
  full = functools.partial(jax.jit(products.multiply, static_argnums=0), "native")
  screened = functools.partial(jax.jit(certified.multiply, static_argnums=0), "native")
  programs = {
    "full": lambda features: full(features, weights)[0],
    "certified": lambda features: screened(features, kernel),
  }
  rows = []
  for count in args.rows:
    keys = map(jax.random.key, range(1, args.runs + 1))
    inputs = [jax.random.normal(key, (count, args.width)) for key in keys]
    timed = alternate(programs, inputs)
    pairs = list(zip(timed["full"].results, timed["certified"].results, strict=True))
    seconds = {name: result.seconds for name, result in timed.items()}
    row = {
      "rows": count,
      **{name: spread(1e3 * times) for name, times in seconds.items()},
      "speed": median_ratio(seconds["full"], seconds["certified"]),
      "computed": float(np.mean([(x == y).sum(axis=1) for x, y in pairs])),
      "same": str(all((x.argmax(1) == y.argmax(1)).all() for x, y in pairs)),
    }
    rows.append(row)
  facts = {"bytes by": library.bytes_by(), "runs": args.runs}
  words = {"vocab_size": args.vocab_size, "width": args.width}
  return render("head", rows, words, notes=[listed(facts)])


MACHINE = Command(
  _MACHINE,
  _machine,
  {
    "megabytes": (256.0, "size of the float32 matrix, larger than the caches"),
    "rows": (64, "number of rows of the large product"),
    "runs": (20, "number of timed runs"),
  },
)
HEAD = Command(
  _HEAD,
  _head,
  {
    "vocab_size": (250_112, "number of columns"),
    "width": (512, "width of the features"),
    "rows": ([1, 8], "numbers of rows"),
    "runs": (30, "number of timed runs"),
  },
)
