"""Times full and certified logits of a large vocabulary, for greedy decoding."""

import argparse
import functools

import jax
import numpy as np

from benchmarks.command import Command
from benchmarks.table import Table, listed, render
from benchmarks.timed import alternate, median_ratio, spread
from specdec_t5x.native import library
from specdec_t5x.network import certified, products


def make(args: argparse.Namespace) -> Table:
  """Times the full and the certified head for each number of rows."""
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
  return render("head", rows, words, notes=[listed(facts)], package="lab")


COMMAND = Command("head", make, package="lab")
