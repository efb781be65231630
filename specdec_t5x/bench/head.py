r"""A large vocabulary's logits for greedy decoding: all of them, and certified.

  python -m specdec_t5x.bench head --vocab-size 250112 --width 512 --output DIR

Random weights and features, of which more logits are close to the largest than of
trained ones. Each product reads the matrix anew, in turn.
"""

import argparse
import functools

import jax
import numpy as np

from specdec_t5x.bench.command import Command, at_least
from specdec_t5x.bench.table import Table, listed
from specdec_t5x.bench.timed import alternate, median_ratio, spread
from specdec_t5x.native import library
from specdec_t5x.network import certified, products


def make(args: argparse.Namespace) -> Table:
  """Times both for each number of rows."""
  at_least(args, vocab_size=1, width=1, runs=1)
  if reason := library.problem():
    raise ValueError(f"A certified head needs our own products: {reason}.")
  draw = lambda key, *shape: jax.random.normal(jax.random.key(key), shape)
  weights = draw(0, args.width, args.vocab_size)
  params = {"decoder": {"logits_dense": {"kernel": weights}}}
  params = certified.within(params, certified.screen(params))
  kernel = params["decoder"]["logits_dense"]["kernel"]
  full, screened = (
    functools.partial(jax.jit(product, static_argnums=0), "native")
    for product in (products.multiply, certified.multiply)
  )
  both = {
    "full": lambda h: full(h, weights)[0],
    "certified": lambda h: screened(h, kernel),
  }
  rows = []
  for count in args.rows:
    features = [draw(i, count, args.width) for i in range(1, args.runs + 1)]
    timed = alternate(both, features)
    pairs = list(zip(*(each.results for each in timed.values()), strict=True))
    seconds = {name: each.seconds for name, each in timed.items()}
    rows.append(
      {
        "rows": count,
        **{name: spread(1e3 * each) for name, each in seconds.items()},
        "speed": median_ratio(seconds["full"], seconds["certified"]),
        "computed": float(np.mean([(x == y).sum(axis=1) for x, y in pairs])),
        "same": str(all((x.argmax(1) == y.argmax(1)).all() for x, y in pairs)),
      }
    )
  facts = {"bytes by": library.bytes_by(), "runs": args.runs}
  words = {"vocab_size": args.vocab_size, "width": args.width}
  return Table.of("head", rows, words, notes=[listed(facts)])


COMMAND = Command(
  __doc__,
  make,
  {
    "vocab_size": (250_112, "columns"),
    "width": (512, "of features"),
    "rows": ([1, 8], "at once"),
    "runs": (30, "of each"),
  },
)
