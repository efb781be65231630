"""Fixed draft lengths beside adaptive ones, on a pair and texts of yours.

  python scripts/bench_gamma.py --target DIR --draft DIR --vocabulary FILE \
    --inputs FILE --prefix "translate English to German: " --output DIR

First measures what drafting and scoring cost here, for GAMMA_POLICY='online'; then
decodes every input greedily at batch 1 with each setting, in turn. Writes gamma.json.
The speeds are medians over the inputs [quartiles] of seconds a token, encoder included,
against the fixed length that took the least time in all. Leave all cores to it.
"""

import argparse
import dataclasses
import json
import sys
from collections.abc import Sequence

if __name__ == "__main__":
  from specdec_t5x.quiet import import_quietly

  import_quietly("tensorflow")

import jax
import sentencepiece
from etils import epath

from specdec_t5x import api
from specdec_t5x.bench import costs
from specdec_t5x.bench.decode import pair_costs
from specdec_t5x.bench.environment import environment
from specdec_t5x.bench.walltime import alternate, median_ratio
from specdec_t5x.core.distributions import GREEDY
from specdec_t5x.decoding.state import row_keys
from specdec_t5x.decoding.widths import block_widths


def main(argv: Sequence[str] | None = None) -> int:
  """Measures what the flags say, prints the table and writes it.

  Args:
    argv: the flags; the process's own where None.

  Returns:
    The exit status: 0, or 1 after printing what is wrong with the input.
  """
  args = _parser().parse_args(argv)
  try:
    found = _measure(args)
    folder = epath.Path(args.output)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "gamma.json").write_text(json.dumps(found, indent=2) + "\n")
  except (ValueError, OSError) as error:
    print(f"error: {error}", file=sys.stderr)
    return 1
  print(_markdown(found))
  return 0


def _measure(args):
  target, draft = api.load_model(args.target), api.load_model(args.draft)
  inputs, eos_id = _inputs(args)
  gamma = max(args.gammas)
  measured = _costs(target, draft, inputs[0], gamma)
  settings = {f"fixed {fixed}": {"gamma": fixed} for fixed in args.gammas}
  for confidence in args.confidences:
    policy = {"gamma_policy": "confidence", "confidence": confidence}
    settings[f"confidence {confidence}"] = {"gamma": gamma, **policy}
  settings["online"] = {"gamma": gamma, "gamma_policy": "online", **measured}
  programs = {
    name: _program(target, draft, each, args.max_length, eos_id)
    for name, each in settings.items()
  }
  timed = alternate(programs, inputs)
  total = {name: float(found.seconds.sum()) for name, found in timed.items()}
  best = min((name for name in total if name.startswith("fixed")), key=total.get)
  return {
    "costs": measured,
    "gamma": gamma,
    "best": best,
    "inputs": len(inputs),
    "environment": environment(),
    "rows": {name: _row(found, timed[best]) for name, found in timed.items()},
  }


def _inputs(args):
  processor = sentencepiece.SentencePieceProcessor(model_file=args.vocabulary)
  lines = epath.Path(args.inputs).read_text().splitlines()[: args.num_inputs]
  if not lines:
    raise ValueError(f"--inputs: {args.inputs!r} has no line. Give an input a line.")
  eos_id = processor.eos_id()
  ids = [[*processor.encode(args.prefix + line), eos_id] for line in lines]
  return [rows for _, rows, _ in api.padded_batches(ids, batch_size=1)], eos_id


def _row(found, best):
  total = lambda field: sum(
    int(getattr(result.statistics, field)[0]) for result in found.results
  )
  same = [
    bool((one.tokens == other.tokens).all())
    for one, other in zip(found.results, best.results, strict=True)
  ]
  return {
    "tokens_per_second": float(total("emitted") / found.seconds.sum()),
    "over_best_in_all": float(best.seconds.sum() / found.seconds.sum()),
    "over_best": dataclasses.asdict(median_ratio(best.seconds, found.seconds)),
    "tokens_per_call": total("emitted") / total("target_calls"),
    "drafted": total("drafted"),
    "identical": sum(same),
  }


def _costs(target, draft, inputs, gamma):
  """Returns what GAMMA_POLICY='online' needs (`costs.online_settings`)."""
  widths = block_widths(gamma)
  gammas = sorted({max(width - 1, 1) for width in widths})
  pairs, params = zip(*(api.together(target, draft, g) for g in gammas), strict=True)
  # Room for ten iterations, whatever is accepted.
  by_gamma = pair_costs(pairs, params[0], inputs, GREEDY, 10 * (gamma + 1))
  return costs.online_settings(by_gamma, widths)


def _program(target, draft, settings, max_length, eos_id):
  pair, params = api.together(target, draft, **settings)
  params, keys = jax.device_put(params), row_keys(jax.random.key(0), 1)
  run = api.compiled(pair, GREEDY, max_length, eos_id)
  return lambda inputs: run(params, inputs, keys)


def _markdown(found):
  lines = [
    f"DRAFT_COST = {found['costs']['draft_cost']:.3f}, BLOCK_COSTS = "
    f"{tuple(round(cost, 3) for cost in found['costs']['block_costs'])} at GAMMA = "
    f"{found['gamma']}; {found['inputs']} inputs; best: {found['best']}",
    "",
    "| setting | tokens/s | speed, all inputs | speed, median input | "
    "tokens a call | drafted | equal outputs |",
    "|---|---|---|---|---|---|---|",
  ]
  for name, row in found["rows"].items():
    spread = row["over_best"]
    lines.append(
      f"| {name} | {row['tokens_per_second']:.0f} | {row['over_best_in_all']:.3f} | "
      f"{spread['median']:.3f} [{spread['low']:.3f}, {spread['high']:.3f}] | "
      f"{row['tokens_per_call']:.2f} | {row['drafted']} | {row['identical']} |"
    )
  return "\n".join(lines)


def _parser() -> argparse.ArgumentParser:
  parser = argparse.ArgumentParser(
    description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
  )
  add = parser.add_argument
  add("--target", metavar="DIR", required=True, help="checkpoint")
  add("--draft", metavar="DIR", required=True, help="checkpoint")
  add("--vocabulary", metavar="FILE", required=True, help="a SentencePiece model")
  add("--inputs", metavar="FILE", required=True, help="an input a line")
  add("--prefix", default="", help="before each line")
  add("--num-inputs", type=int, default=100, help="the first so many (%(default)s)")
  add("--max-length", type=int, default=64, help="room for an output (%(default)s)")
  add("--gammas", type=int, nargs="+", default=[1, 2, 3, 4, 5, 7, 10])
  add("--confidences", type=float, nargs="+", default=[0.2, 0.4, 0.6])
  add("--output", metavar="DIR", required=True, help="for gamma.json")
  return parser


if __name__ == "__main__":
  sys.exit(main())
