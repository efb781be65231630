r"""Times speculation at set acceptance rates on random weights of any T5 size.

  python -m benchmarks decode --target base --draft tiny --gamma 7 \
    --alphas 0.75 0.9 --output runs/bench

  python -m benchmarks decode --draft int8 --gamma 7 --alphas 0.95 \
    --output runs/rounded

Prints the times of an iteration's parts, and speed-ups over plain decoding, measured
and predicted. Target and draft run in full as oracles (`benchmarks.oracle`): the
target's argmax is bent to a random text, and the draft's argmax to the same text at a
share alpha of the positions. Decoding is greedy and never ends early. The command
imports neither TensorFlow nor seqio nor T5X.
"""

import argparse

from benchmarks.command import Command, at_least
from benchmarks.iteration import part_programs
from benchmarks.measured import Setting
from benchmarks.oracle import ROUNDED, Pair, Setup
from benchmarks.run import PLAIN, Run, Way, measure
from benchmarks.sizes import SIZES
from benchmarks.table import Table, listed, render
from benchmarks.timed import each_turn, medians, spread
from specdec_t5x.analysis import theory
from specdec_t5x.drafters.draft_model import DEFAULT_GAMMA
from specdec_t5x.network.config import DTYPES

_FEW = 4  # The smaller of the two counts of repetitions of a part.
_PARTS = ("draft", "scoring", "verification")


def make(args: argparse.Namespace) -> Table:
  """Measures parts and calls."""
  if not all(0 <= alpha <= 1 for alpha in args.alphas) or args.runs < 1:
    raise ValueError(
      f"Expected alphas from 0 to 1 and at least 1 run, got {args.alphas} and "
      f"{args.runs}."
    )
  # A shorter output has too few iterations to time.
  least = 2 * _FEW * (args.gamma + 1)
  at_least(args, batch=1, input_length=1, output_length=least)
  setup = Setup(
    target=args.target,
    draft=args.draft,
    batch=args.batch,
    temperature=0.0,
    gamma=args.gamma,
    dtype=args.dtype,
    input_length=args.input_length,
    max_length=args.output_length,
  )
  pair = Pair(setup)
  pair.compile("iteration", "plain")
  # An iteration emits at most gamma + 1 tokens, so `most` iterations always fit.
  most = args.output_length // (args.gamma + 1)
  arguments = pair.forced, *pair.given
  programs = part_programs(pair.start).items()
  loops = {name: (run, arguments, (_FEW, most)) for name, run in programs}
  seconds = each_turn(loops, args.runs)
  middle = medians(seconds, args.gamma)
  seconds["rest"] = seconds["iteration"] - sum(seconds[part] for part in _PARTS)
  milliseconds = {name: spread(1e3 * times) for name, times in seconds.items()}
  parts = [{"part": name, "ms": ms} for name, ms in milliseconds.items()]
  settings = {name: getattr(args, name) for name in COMMAND.flags}
  return render(
    "bench",
    _speedups(pair, args, middle),
    notes=[listed(settings)],
    facts={"ms": milliseconds},
    before=[render("bench.parts", parts)],
  )


def _speedups(pair, args, seconds) -> list[dict]:
  """Returns a row per alpha: the requested and the measured alpha, and predictions."""
  ways = {PLAIN: Way(program=lambda _: pair.run("plain", pair.setup.max_length))}
  for alpha in args.alphas:
    ways[alpha] = Way(program=pair.calls(alpha, args.runs))
  setting = Setting(args.gamma, 0.0)
  run = Run(lambda *_: ways, repetitions=args.runs, setting=setting)
  token = seconds["token"]
  draft = seconds["draft"]
  _, *others = measure(run)
  rows = []
  for row in others:
    alpha = row.cell.alpha.value
    theorem = theory.walltime_improvement(alpha, args.gamma, draft / args.gamma / token)
    tokens = theory.expected_tokens(alpha, args.gamma)
    predicted = {
      "theorem": float(theorem),
      "with_block": float(tokens * token / (draft + seconds["scoring"])),
    }
    rows.append({"wanted": row.key, **row.values, **predicted})
  return rows


COMMAND = Command(
  __doc__,
  make,
  {
    "target": ("base", "size of the target", SIZES),
    "draft": ("tiny", "size, or the target with rounded weights", (*SIZES, *ROUNDED)),
    "gamma": DEFAULT_GAMMA,
    "alphas": [0.75, 0.9],
    "batch": (1, "batch size"),
    "input_length": (64, "number of tokens"),
    "output_length": (128, "number of tokens"),
    "dtype": ("float32", "", DTYPES),
    "runs": (9, "number of runs of every program"),
  },
)
