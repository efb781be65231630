r"""Fixed draft lengths beside adaptive ones, on a pair and texts of yours.

  python -m specdec_t5x.bench gamma --target DIR --draft DIR --vocabulary FILE \
    --inputs FILE --prefix "translate English to German: " --output DIR

First measures what drafting and scoring cost here, for configs/policies/online.gin;
then decodes every input greedily at batch 1 with each setting, in turn. Writes
gamma.json, gamma.csv and gamma.md. The speeds are medians over the inputs [quartiles]
of seconds a token, encoder included, against the fixed length that took the least time
in all. Leave all cores to it.
"""

import argparse

from specdec_t5x import api
from specdec_t5x.bench import costs, flags, inputs, programs
from specdec_t5x.bench.command import Command
from specdec_t5x.bench.environment import environment
from specdec_t5x.bench.measured import Measured, Setting
from specdec_t5x.bench.study import pad_inputs
from specdec_t5x.bench.table import Column, Table, listed
from specdec_t5x.bench.walltime import alternate
from specdec_t5x.core.distributions import GREEDY
from specdec_t5x.decoding.widths import block_widths
from specdec_t5x.drafters.policies import Confidence, OnlineAlpha

_COLUMNS = (
  Column("setting", "setting"),
  Column("tokens_per_second", "tokens/s", 0),
  Column("over_best_in_all", "speed, all inputs", 3),
  Column("over_best", "speed, median input", 3),
  Column("tokens_per_call", "tokens a call"),
  Column("drafted", "drafted"),
  Column("identical", "equal outputs"),
)


def add_flags(parser: argparse.ArgumentParser) -> None:
  """Adds the command's flags."""
  flags.add_one_pair(parser)
  add = parser.add_argument
  add("--gammas", type=int, nargs="+", default=[1, 2, 3, 4, 5, 7, 10])
  add("--confidences", type=float, nargs="+", default=[0.2, 0.4, 0.6])
  flags.add_output(parser, None)


def make(args: argparse.Namespace) -> Table:
  """Measures costs, then decodes every input with every setting."""
  ids, eos_id = inputs.lines(args)()
  texts, gamma = pad_inputs(ids), max(args.gammas)
  models = api.load_model(args.target), api.load_model(args.draft)
  measured = _costs(models, texts[0], gamma)
  (keys,) = programs.input_keys(1)
  runs = {}
  for name, settings in _settings(args, gamma, measured).items():
    decoder, params = programs.together(*models, **settings)
    run = programs.decoding(decoder, params, GREEDY, args.max_length, eos_id)
    runs[name] = lambda text, run=run: run(text, keys)
  timed = alternate(runs, texts)
  fixed = [name for name in timed if name.startswith("fixed")]
  best = min(fixed, key=lambda name: timed[name].seconds.sum())
  online = (
    f"DRAFT_COST = {measured['draft_cost']:.3f}, BLOCK_COSTS = "
    f"{tuple(round(cost, 3) for cost in measured['block_costs'])} at GAMMA = {gamma}"
  )
  return Table(
    "gamma",
    f"{len(texts)} inputs; best: {best}",
    _COLUMNS,
    [{"setting": n, **_row(found, timed[best])} for n, found in timed.items()],
    (online, listed(environment())),
    vars(args),
    {"costs": measured, "gamma": gamma, "best": best, "inputs": len(texts)},
  )


def _settings(args, gamma, measured):
  settings = {f"fixed {fixed}": {"gamma": fixed} for fixed in args.gammas}
  for confidence in args.confidences:
    policy = Confidence(confidence)
    settings[f"confidence {confidence}"] = {"gamma": gamma, "policy": policy}
  settings["online"] = {"gamma": gamma, "policy": OnlineAlpha(**measured)}
  return settings


def _row(found, best):
  cell = Measured.timed(Setting(0, 0.0), found, best)
  return {
    "tokens_per_second": float(cell.tokens / found.seconds.sum()),
    "over_best_in_all": cell.speedup_in_all,
    "over_best": cell.speedup,
    "tokens_per_call": cell.tokens_per_call.value,
    "drafted": int(cell.columns["drafted"].sum()),
    "identical": cell.identical,
  }


def _costs(models, text, gamma):
  """Returns what `OnlineAlpha` needs (`costs.online_settings`)."""
  widths = block_widths(gamma)
  gammas = costs.gammas_of(widths)
  found = [programs.together(*models, gamma=gamma) for gamma in gammas]
  decoders, params = zip(*found, strict=True)
  # Room for ten iterations, whatever is accepted.
  found = programs.pair_costs(decoders, params[0], text, GREEDY, 10 * (gamma + 1))
  return costs.online_settings(found, widths)


COMMAND = Command(__doc__, make, add_flags)
