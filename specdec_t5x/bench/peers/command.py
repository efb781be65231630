r"""Our speculation beside Hugging Face's and upstream T5X's decoding, in one process.

  python -m specdec_t5x.bench peers --target DIR --draft DIR --vocabulary FILE \
    --inputs FILE --prefix "translate English to German: " --output DIR
  python -m specdec_t5x.bench peers --size base --draft-size small --alpha 0.8 \
    --num-inputs 10 --max-length 64 --output DIR

The first way takes real checkpoints. The second takes random weights of T5 1.1's sizes
and a draft that does its work and then says the target's token with probability alpha.
All programs have the same weights, inputs and gamma, and decode greedily in float32.
Leave all cores to it: torch's threads wait for each other, so one busy core slows it
down far more than it slows XLA down.


Hugging Face needs the extra `peers`; upstream T5X, in place of t5x_runtime,
requirements/t5x-upstream.txt.
"""

import argparse

import numpy as np
from etils import epath

from specdec_t5x.bench import jobs
from specdec_t5x.bench.command import Command, at_least
from specdec_t5x.bench.iteration import NEVER
from specdec_t5x.bench.peers.comparison import compare
from specdec_t5x.bench.peers.programs import Workload
from specdec_t5x.bench.programs import random_model
from specdec_t5x.bench.table import Table
from specdec_t5x.drafters.draft_model import DEFAULT_GAMMA
from specdec_t5x.network import sizes


def make(args: argparse.Namespace) -> Table:
  """Runs every program that there is on every input."""
  at_least(args, num_inputs=1, max_length=1, input_length=1)
  if args.size:
    work = _random_workload(args)
    settings = {name: getattr(args, name) for name in ("size", "draft_size", "seed")}
  else:
    study = jobs.load(args)
    work = Workload.of(study, study.drafts[0].model, args.gamma)
    names = {"target": study.job.target, "draft": study.drafts[0].source}
    names |= {"vocabulary": args.vocabulary or "", "inputs": args.inputs or ""}
    settings = {name: epath.Path(path).name for name, path in names.items()}
    settings |= {"task": study.job.task, "prefix": args.prefix}
  return compare(work, settings)


def _random_workload(args: argparse.Namespace) -> Workload:
  if not 0 <= args.alpha <= 1:
    raise ValueError(f"--alpha: expected a probability, got {args.alpha}.")
  # Not the padding token, nor rows of padding beyond the vocabulary.
  shape = (args.num_inputs, 1, args.input_length)
  rows = np.random.default_rng(args.seed).integers(1, 32_000, shape, np.int32)
  return Workload(
    target=random_model(args.size, args.seed),
    draft=random_model(args.draft_size, args.seed + 1),
    inputs=list(rows),
    gamma=args.gamma,
    max_length=args.max_length,
    eos_id=NEVER,
    alpha=args.alpha,
    seed=args.seed,
  )


COMMAND = Command(
  __doc__,
  make,
  {
    **jobs.PAIRS,
    **jobs.FEW,
    "max_length": 128,
    "size": (str, "of a target with random weights", sizes.SIZES),
    "draft_size": ("small", "", sizes.SIZES),
    "alpha": (0.8, "with --size"),
    "input_length": (64, "with --size"),
    "gamma": DEFAULT_GAMMA,
    "seed": (0, "with --size: of weights, inputs and oracle"),
  },
)
