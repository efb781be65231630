r"""Times speculation at set acceptance rates on random weights of any T5 size.

  python -m specdec_t5x.bench decode --target base --draft tiny --gamma 7 \
    --alphas 0.75 0.9 --output runs/bench

Prints what an iteration is made of, speed-ups over plain decoding, measured and
predicted, and memory; writes bench.json, bench.csv and bench.md. Imports neither
TensorFlow nor seqio nor T5X. Leave all cores to it.
"""

import argparse
import dataclasses

from specdec_t5x.bench import costs, flags
from specdec_t5x.bench.command import Command
from specdec_t5x.bench.environment import environment
from specdec_t5x.bench.oracle import Bench, Job
from specdec_t5x.bench.table import Column, Table, listed
from specdec_t5x.bench.walltime import spread
from specdec_t5x.network.config import DTYPES
from specdec_t5x.network.sizes import SIZES

_PARTS = ("draft", "scoring", "verification")
_PART_COLUMNS = Column("part", "part"), Column("ms", "ms")
_FACT_COLUMNS = Column("fact", "of an iteration"), Column("value", "")
_COLUMNS = (
  Column("wanted", "alpha"),
  Column("alpha", "as it came out", 3),
  Column("tokens_per_call", "tokens a call"),
  Column("speedup", "speed-up"),
  Column("theorem", "Theorem 3.8"),
  Column("with_block", "with the block's cost"),
  Column("identical", "identical"),
  Column("runs", "of"),
)


def add_flags(parser: argparse.ArgumentParser) -> None:
  """Adds the command's flags."""
  add, default = parser.add_argument, Job()
  add("--target", choices=SIZES, default=default.target, help="(%(default)s)")
  add("--draft", choices=SIZES, default=default.draft, help="(%(default)s)")
  add("--gamma", type=int, default=default.gamma, help="drafted tokens (%(default)s)")
  add("--alphas", type=float, nargs="+", default=[0.75, 0.9], help="(%(default)s)")
  add("--batch", type=int, default=default.batch, help="rows (%(default)s)")
  add("--input-length", type=int, default=default.input_length, help="(%(default)s)")
  add("--output-length", type=int, default=default.output_length, help="(%(default)s)")
  add("--dtype", choices=DTYPES, default=default.dtype, help="(%(default)s)")
  add("--runs", type=int, default=9, help="of each program (%(default)s)")
  flags.add_output(parser, None)


def make(args: argparse.Namespace) -> Table:
  """Measures parts, whole calls and memory."""
  if not all(0 <= alpha <= 1 for alpha in args.alphas) or args.runs < 1:
    raise ValueError(
      "Expected alphas from 0 to 1 and at least one run, got "
      f"{args.alphas} and {args.runs}."
    )
  job = Job(**{f.name: getattr(args, f.name) for f in dataclasses.fields(Job)})
  bench = Bench(job)
  seconds = bench.part_seconds(args.runs)
  medians = costs.medians(seconds, job.gamma)
  facts = _facts(bench, seconds, medians, args.runs)
  settings = {**dataclasses.asdict(job), "runs": args.runs}
  return Table(
    "bench",
    "Whole calls, plain and with speculation",
    _COLUMNS,
    bench.speedups(args.alphas, args.runs, medians),
    (
      "Random weights, draft by an oracle that proposes the target's own token with "
      "probability alpha after running the draft network; greedy, nothing ends early.",
      "Parts: median [quartiles] of the runs, a repetition, from two loop lengths.",
      "Speed-up: whole calls, encoder included, plain and speculative in turn.",
      listed(settings),
      listed(environment()),
    ),
    settings,
    facts,
    before=(_part_table(facts), _fact_table(facts)),
  )


def _facts(bench, seconds, medians, runs):
  """Returns what is found beside whole calls: times in ms, sizes in bytes."""
  rest = seconds["iteration"] - sum(seconds[name] for name in _PARTS)
  timed = {**seconds, "rest": rest}
  ratio = lambda name, *others: spread(
    seconds[name] / sum(seconds[other] for other in others)
  )
  floor, read = bench.floor_seconds(runs)
  token = medians["token"]
  return {
    "ms": {name: spread(1e3 * each) for name, each in timed.items()},
    "iteration_over_parts": ratio("iteration", "draft", "scoring"),
    "iteration_over_turns": ratio("iteration", "turns"),
    "block_over_token": ratio("scoring", "token"),
    "c": medians["draft"] / bench.job.gamma / token,
    "read_bytes": read,
    "floor_ms": 1e3 * floor.median,
    "floor_over_token": floor.median / token,
    "floor_over_block": floor.median / medians["scoring"],
    "compilation": bench.compilation(),
  }


def _part_table(facts):
  rows = [{"part": name, "ms": ms} for name, ms in facts["ms"].items()]
  return Table("parts", "Parts of an iteration", _PART_COLUMNS, rows)


def _fact_table(facts):
  compilation = facts["compilation"]
  held = compilation["weights"] + compilation["caches"]
  found = {
    "iteration / (draft + scoring)": facts["iteration_over_parts"],
    "iteration / draft and scoring in turn": facts["iteration_over_turns"],
    "block / one token": facts["block_over_token"],
    "c": f"{facts['c']:.3f}",
    "reading a step's weights": (
      f"{facts['floor_ms']:.2f} ms for {facts['read_bytes'] / 1e6:.0f} MB: "
      f"{facts['floor_over_token']:.0%} of a token's time, "
      f"{facts['floor_over_block']:.0%} of a block's"
    ),
    "peak memory / (weights + caches)": f"{compilation['peak'] / held:.3f}",
    "compiling": f"{compilation['seconds']:.1f} s",
  }
  rows = [{"fact": name, "value": value} for name, value in found.items()]
  return Table("facts", "Ratios and memory", _FACT_COLUMNS, rows)


COMMAND = Command(__doc__, make, add_flags)
