"""What this machine's products can do, which bounds what any way to decode can gain."""

import argparse
import functools

import jax
import jax.numpy as jnp
import numpy as np

from specdec_t5x.bench.command import Command, at_least
from specdec_t5x.bench.table import Table, listed, render
from specdec_t5x.bench.timed import alternate, median_ratio, spread
from specdec_t5x.native import library
from specdec_t5x.network import certified, products

_MACHINE = """What this machine can do: bounds of what any way to decode can gain on it.

How fast weights are read for one row, how fast many rows are multiplied, and how far
apart two runs of one program are: a smaller distance between two programs says nothing.
"""
_HEAD = r"""A large vocabulary's logits for greedy decoding: all of them, and certified.

  python -m specdec_t5x.bench head --vocab-size 250112 --width 512 --output DIR

Random weights and features, of which more logits are close to the largest than of
trained ones. Each product reads the matrix anew, in turn.
"""


def _machine(args: argparse.Namespace) -> Table:
  """Times one row and many through the same matrix, and one row twice."""
  at_least(args, megabytes=1, rows=1, runs=1)
  size = int((args.megabytes * 1e6 / 4) ** 0.5)
  weights = jax.random.normal(jax.random.key(0), (size, size))
  product = jax.jit(lambda x: products.multiply("auto", x, weights)[0])
  one, many = jnp.ones((1, size)), jnp.ones((args.rows, size))
  programs = {
    "once": lambda _: product(one),
    "again": lambda _: product(one),
    "many": lambda _: product(many),
  }
  timed = alternate(programs, range(args.runs))
  seconds = {name: each.seconds for name, each in timed.items()}
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
  """Times the whole and the certified head for each number of rows."""
  at_least(args, vocab_size=1, width=1, runs=1)
  if reason := library.problem():
    raise ValueError(f"A certified head needs our own products: {reason}.")
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
    pairs = list(zip(*(each.results for each in timed.values()), strict=True))
    seconds = {name: each.seconds for name, each in timed.items()}
    row = {
      "rows": count,
      **{name: spread(1e3 * each) for name, each in seconds.items()},
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
    "megabytes": (256.0, "of the matrix, in float32: more than caches hold"),
    "rows": (64, "that are many"),
    "runs": (20, "of each"),
  },
)
HEAD = Command(
  _HEAD,
  _head,
  {
    "vocab_size": (250_112, "columns"),
    "width": (512, "of features"),
    "rows": ([1, 8], "at once"),
    "runs": (30, "of each"),
  },
)
