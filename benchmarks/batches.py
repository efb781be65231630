r"""Plain decoding, fixed draft lengths and policies, by batch.

  python -m benchmarks batches --target DIR --draft DIR --vocabulary FILE \
    --inputs FILE --prefix "translate English to German: " --batches 1 4 16 \
    --temperature 1 --top-k 40 --queue 8 --output DIR

Decodes the same inputs with each setting, in turn, in groups of --queue batches, in two
ways: batch by batch, as `t5x.infer` does, with the policy's state passed from batch to
batch ('auto'); and as one call with SLOTS, so that a finished row takes the next input.
Speeds are medians over the groups [quartiles], encoder included. To compare 'auto' with
fixed lengths:

  --batches 1 --gamma 7 --gammas 1 2 3 5 7 --policies auto
"""

import argparse
import dataclasses
import functools
import itertools

import numpy as np

from benchmarks import jobs
from benchmarks.command import Command
from benchmarks.measured import tokens
from benchmarks.run import PLAIN, Row, Run, Way, Ways, measure
from benchmarks.study import Study, decoding_groups
from benchmarks.table import Table, render
from specdec_t5x import api
from specdec_t5x.core.distributions import Sampling
from specdec_t5x.decoding.policies import Fixed
from specdec_t5x.native import library
from specdec_t5x.policies import get_policy


def make(args: argparse.Namespace) -> Table:
  """Decodes every input with every setting at each batch size."""
  study = jobs.load(args)
  sampling = Sampling(args.temperature, args.top_k, args.top_p)

  def groups(batch):
    padded = api.padded_batches(study.ids, batch * args.queue)
    return [(first, texts) for first, texts, _ in padded]

  run = Run(
    lambda temperature, batch: _ways(args, study, sampling, batch),
    inputs=groups,
    temperatures=[args.temperature],
    batches=args.batches,
  )
  rows = []
  fastest = []
  for batch, group in itertools.groupby(measure(run), key=lambda row: row.batch):
    results = {row.key: row for row in group}
    # The fastest setting of a fixed length that decodes batch by batch.
    names = [f"gamma {gamma}" for gamma in args.gammas]
    seconds = {name: results[name].cell.columns["seconds"].sum() for name in names}
    best = min(names, key=seconds.get)
    fastest.append(f"{best} at batch {batch}")
    outputs = _outputs(results[PLAIN])
    for key, row in results.items():
      comparison = {
        "batch": batch,
        "setting": key,
        "over_best": row.cell.over(results[best].cell),
        "identical": int((_outputs(row) == outputs).all(axis=1).sum()),
      }
      rows.append({**row.values, **comparison})
  words = {
    "inputs": len(study.inputs),
    "sampling": sampling,
    "products": library.problem() or "native",
    "fastest": ", ".join(fastest),
  }
  return render("batches", rows, words, facts={"inputs": len(study.inputs)})


def _outputs(row: Row) -> np.ndarray:
  return np.concatenate([*map(tokens, row.results)])


def _ways(args, study: Study, sampling: Sampling, batch: int) -> Ways:
  """Returns, by name, the ways to decode a group of inputs."""
  draft = study.drafts[0]
  drafted = functools.partial(study.decode, 0.0, draft.model, draft.drafter)
  decodes = {PLAIN: study.decode(0.0)}
  for gamma in args.gammas:
    decodes[f"gamma {gamma}"] = drafted(gamma=gamma, policy=Fixed())
  for name in args.policies:
    decodes[name] = drafted(gamma=args.gamma, policy=get_policy(name))
  ways = {}
  for name, decode in decodes.items():
    decode = dataclasses.replace(decode, sampling=sampling)
    ways[name] = Way(program=decoding_groups(decode, batch))
    if args.queue > 1:
      slots = dataclasses.replace(decode.decoder, slots=batch)
      queued = dataclasses.replace(decode, decoder=slots)
      queue = decoding_groups(queued, batch * args.queue)
      ways[f"{name}, SLOTS"] = Way(program=queue)
  return ways


COMMAND = Command(
  __doc__,
  make,
  {
    **jobs.PAIRS,
    **jobs.FEW,
    "batches": [1, 4, 16],
    "gamma": (5, "maximum draft length of policies"),
    "gammas": ([1, 3, 5], "fixed draft lengths"),
    "policies": (["auto"], "values of GAMMA_POLICY"),
    "queue": (1, "number of batches in a group"),
    "temperature": 0.0,
    "top_k": 0,
    "top_p": 0.0,
  },
)
