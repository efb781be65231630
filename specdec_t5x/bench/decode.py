r"""Times speculation at set acceptance rates on random weights of any T5 size.

  python -m specdec_t5x.bench decode --target base --draft tiny --gamma 7 \
    --alphas 0.75 0.9 --output runs/bench

  python -m specdec_t5x.bench decode --draft int8 --gamma 7 --alphas 0.95 \
    --output runs/rounded

Prints what an iteration is made of, speed-ups over plain decoding, measured and
predicted, and memory. Both networks are oracles (`bench.oracle`): they run in full,
then the target's argmax is bent to a random text, and the draft's to the same text at a
share alpha of the positions. Greedy decoding that never ends early. Imports neither
TensorFlow nor seqio nor T5X.
"""

import argparse
from collections.abc import Mapping, Sequence
from typing import Any

import jax

from specdec_t5x.analysis import theory
from specdec_t5x.bench.command import Command, at_least
from specdec_t5x.bench.iteration import part_programs
from specdec_t5x.bench.measured import PLAIN, Setting, compare
from specdec_t5x.bench.oracle import Pair, Setup
from specdec_t5x.bench.programs import ROUNDED
from specdec_t5x.bench.table import Table, listed
from specdec_t5x.bench.timed import Spread, alternate, each_turn, medians, spread
from specdec_t5x.drafters.draft_model import DEFAULT_GAMMA
from specdec_t5x.network.config import DTYPES
from specdec_t5x.network.sizes import SIZES

_FEW = 4  # Repetitions of a part that are timed beside more of them.
_PARTS = ("draft", "scoring", "verification")


def speedups(
  pair: Pair, alphas: Sequence[float], runs: int, seconds: Mapping[str, float]
) -> list[dict[str, Any]]:
  """Times whole calls, plain and with speculation at each alpha, in turn.

  Args:
    pair: what decodes.
    alphas: acceptance rates.
    runs: of each program; each draws new accepted positions.
    seconds: of each part, for the predictions.

  Returns:
    A row an alpha: the alpha "wanted" of the oracle and "alpha" as it came out,
    "theorem" (3.8 at this alpha with the measured c) and "with_block" (the same with
    the measured cost of scoring a block) beside what was measured.
  """
  gamma, whole = pair.setup.gamma, pair.setup.max_length
  plain = lambda _: pair.run("plain", whole)
  calls = {PLAIN: plain, **{alpha: pair.calls(alpha, runs) for alpha in alphas}}
  cells = compare(calls, range(runs), Setting(gamma, 0.0))
  token, draft, block = (seconds[name] for name in ("token", "draft", "scoring"))
  rows = []
  for alpha in alphas:
    came = cells[alpha].alpha.value
    theorem = theory.walltime_improvement(came, gamma, draft / gamma / token)
    with_block = theory.expected_tokens(came, gamma) * token / (draft + block)
    found = {"theorem": float(theorem), "with_block": float(with_block)}
    rows.append({"wanted": alpha, **cells[alpha].row(), **found})
  return rows


def compilation(pair: Pair) -> dict[str, float]:
  """Returns what compiling the speculative program takes, and what it then holds.

  Returns:
    "seconds" to compile; bytes of "weights", of "caches" and of the "peak".
  """
  made = pair.programs["iteration"]
  needs = made.program.memory_analysis()
  kept = lambda state: jax.tree.leaves((state.target_cache, state.drafter_state))
  start = lambda *given: kept(pair.start(*given)[1])
  return {
    "seconds": made.seconds,
    "weights": _bytes(pair.params),
    "caches": _bytes(jax.eval_shape(start, pair.forced, *pair.given)),
    "peak": needs.argument_size_in_bytes + needs.temp_size_in_bytes,
  }


def floor_seconds(pair: Pair, runs: int) -> tuple[Spread, int]:
  """Returns the time to read the weights of a decoding step, and their bytes.

  Reading is timed on all of the target's weights, summed where they lie.
  """
  total = jax.jit(lambda tree: sum(x.sum() for x in jax.tree.leaves(tree)))
  weights = pair.params["target"]
  timed = alternate({"read": lambda _: total(weights)}, range(runs))["read"]
  read = _bytes(_of_a_step(weights))
  return spread(timed.seconds * read / _bytes(weights)), read


def make(args: argparse.Namespace) -> Table:
  """Measures parts, whole calls and memory."""
  if not all(0 <= alpha <= 1 for alpha in args.alphas) or args.runs < 1:
    raise ValueError(
      "Expected alphas from 0 to 1 and at least one run, got "
      f"{args.alphas} and {args.runs}."
    )
  # Fewer iterations are too few to time.
  least = 2 * _FEW * (args.gamma + 1)
  at_least(args, batch=1, input_length=1, output_length=least)
  lengths = args.dtype, args.input_length, args.output_length
  pair = Pair(Setup(args.target, args.draft, args.batch, 0.0, args.gamma, *lengths))
  pair.compile("iteration", "plain")
  # So many iterations always fit: none emits more than gamma + 1 tokens.
  most, given = args.output_length // (args.gamma + 1), (pair.forced, *pair.given)
  programs = part_programs(pair.start)
  loops = {name: (run, given, (_FEW, most)) for name, run in programs.items()}
  seconds = each_turn(loops, args.runs)
  middle = medians(seconds, args.gamma)
  times = {**seconds, "rest": seconds["iteration"] - sum(seconds[x] for x in _PARTS)}
  milliseconds = {name: spread(1e3 * each) for name, each in times.items()}
  floor, read = floor_seconds(pair, args.runs)
  held = compilation(pair)
  settings = {name: getattr(args, name) for name in COMMAND.flags}
  parts = [{"part": name, "ms": ms} for name, ms in milliseconds.items()]
  facts = _facts(args.gamma, seconds, middle, floor.median, read, held)
  return Table.of(
    "bench",
    speedups(pair, args.alphas, args.runs, middle),
    notes=[listed(settings)],
    settings=settings,
    facts={"ms": milliseconds, "read_bytes": read, "compilation": held},
    before=[Table.of("bench.parts", parts), Table.of("bench.facts", facts)],
  )


def _facts(gamma, seconds, medians, floor, read, held):
  """Returns rows of what is found beside whole calls."""
  ratio = lambda name, *others: spread(
    seconds[name] / sum(seconds[other] for other in others)
  )
  token, kept = medians["token"], held["weights"] + held["caches"]
  found = {
    "iteration / (draft + scoring)": ratio("iteration", "draft", "scoring"),
    "iteration / draft and scoring in turn": ratio("iteration", "turns"),
    "block / one token": ratio("scoring", "token"),
    "c": f"{medians['draft'] / gamma / token:.3f}",
    "reading a step's weights": (
      f"{1e3 * floor:.2f} ms for {read / 1e6:.0f} MB: {floor / token:.0%} of a token's "
      f"time, {floor / medians['scoring']:.0%} of a block's"
    ),
    "peak memory / (weights + caches)": f"{held['peak'] / kept:.3f}",
    "compiling": f"{held['seconds']:.1f} s",
  }
  return [{"fact": name, "value": value} for name, value in found.items()]


def _of_a_step(weights):
  """The weights that scoring a block reads: cross keys and values are computed once."""
  once = ("encoder_decoder_attention/key", "encoder_decoder_attention/value")
  leaves = jax.tree_util.tree_leaves_with_path(weights["decoder"])
  name = lambda path: jax.tree_util.keystr(path, simple=True, separator="/")
  return [leaf for path, leaf in leaves if not any(part in name(path) for part in once)]


def _bytes(tree):
  return sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(tree))


COMMAND = Command(
  __doc__,
  make,
  {
    "target": ("base", "size", SIZES),
    "draft": ("tiny", "size, or the target's own weights rounded", (*SIZES, *ROUNDED)),
    "gamma": DEFAULT_GAMMA,
    "alphas": [0.75, 0.9],
    "batch": (1, "rows"),
    "input_length": (64, "tokens"),
    "output_length": (128, "tokens"),
    "dtype": ("float32", "", DTYPES),
    "runs": (9, "of each program"),
  },
)
