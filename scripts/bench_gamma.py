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
import jax.numpy as jnp
import numpy as np
import sentencepiece
from etils import epath

from specdec_t5x import api, assemble
from specdec_t5x.analysis import parts
from specdec_t5x.analysis.walltime import alternate, median_ratio
from specdec_t5x.core.distributions import GREEDY
from specdec_t5x.decoding.state import row_keys
from specdec_t5x.decoding.widths import block_widths
from specdec_t5x.report.environment import environment

GAMMAS = (1, 2, 3, 4, 5, 7, 10)
CONFIDENCES = (0.2, 0.4, 0.6)


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
  processor = sentencepiece.SentencePieceProcessor(model_file=args.vocabulary)
  lines = epath.Path(args.inputs).read_text().splitlines()[: args.num_inputs]
  if not lines:
    raise ValueError(f"--inputs: {args.inputs!r} has no line. Give an input a line.")
  ids = [[*processor.encode(args.prefix + x), processor.eos_id()] for x in lines]
  inputs = [rows for _, rows, _ in api.padded_batches(ids, batch_size=1)]
  room = args.max_length, processor.eos_id()
  costs = _costs(target, draft, inputs[0], args.max_length)
  settings = {f"fixed {gamma}": {"gamma": gamma} for gamma in GAMMAS}
  most = {"gamma": max(GAMMAS)}
  for confidence in CONFIDENCES:
    settings[f"confidence {confidence}"] = most | {
      "gamma_policy": "confidence",
      "confidence": confidence,
    }
  settings["online"] = most | {"gamma_policy": "online", **costs}
  programs = {name: _program(target, draft, s, *room) for name, s in settings.items()}
  timed = alternate(programs, inputs)
  total = {name: float(found.seconds.sum()) for name, found in timed.items()}
  best = min((name for name in total if name.startswith("fixed")), key=total.get)
  tokens = lambda found: np.array([int(r.statistics.emitted[0]) for r in found.results])
  same = lambda found: sum(
    bool((a.tokens == b.tokens).all())
    for a, b in zip(found.results, timed[best].results, strict=True)
  )
  return {
    "costs": costs,
    "best": best,
    "inputs": len(inputs),
    "environment": environment(("jax", "jaxlib", "flax")),
    "rows": {
      name: {
        "tokens_per_second": float(tokens(found).sum() / total[name]),
        "over_best_in_all": total[best] / total[name],
        "over_best": dataclasses.asdict(
          median_ratio(timed[best].seconds, found.seconds)
        ),
        "tokens_per_call": float(
          tokens(found).sum()
          / sum(int(r.statistics.target_calls[0]) for r in found.results)
        ),
        "drafted": sum(int(r.statistics.drafted[0]) for r in found.results),
        "identical": same(found),
      }
      for name, found in timed.items()
    },
  }


def _costs(target, draft, inputs, max_length):
  """Returns what GAMMA_POLICY='online' needs, in units of the target's one token."""
  gamma = max(GAMMAS)
  widths = block_widths(gamma)
  seconds = {}
  for width in widths:
    pair, params = api.together(target, draft, width - 1)
    seconds[width] = _part_seconds(pair, params, inputs, max_length)
  token = np.mean([found["token"] for found in seconds.values()])
  return {
    "draft_cost": float(seconds[gamma + 1]["draft"] / gamma / token),
    "block_costs": tuple(float(seconds[w]["scoring"] / token) for w in widths),
  }


def _part_seconds(pair, params, inputs, max_length):
  prepare = lambda params, inputs, keys: assemble.prepare(
    pair, params, inputs, keys, GREEDY, max_length, -1
  )
  programs = parts.part_programs(prepare)
  args = params, inputs, row_keys(jax.random.key(0), 1)
  timed = alternate(
    {
      (name, count): lambda _, run=programs[name], n=count: run(jnp.int32(n), *args)
      for name in ("draft", "scoring", "token")
      for count in (4, 36)
    },
    range(11),
  )
  costs = parts.costs({key: value.seconds for key, value in timed.items()})
  return {name: float(np.median(values)) for name, values in costs.items()}


def _program(target, draft, settings, max_length, eos_id):
  pair, params = api.together(target, draft, **settings)
  params, keys = jax.device_put(params), row_keys(jax.random.key(0), 1)
  run = api.compiled(pair, GREEDY, max_length, eos_id)
  return lambda inputs: run(params, inputs, keys)


def _markdown(found):
  lines = [
    f"DRAFT_COST = {found['costs']['draft_cost']:.3f}, BLOCK_COSTS = "
    f"{tuple(round(cost, 3) for cost in found['costs']['block_costs'])} at GAMMA = "
    f"{max(GAMMAS)}; {found['inputs']} inputs; best: {found['best']}",
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
  add("--output", metavar="DIR", required=True, help="for gamma.json")
  return parser


if __name__ == "__main__":
  sys.exit(main())
