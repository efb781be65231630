r"""The best hierarchy of drafts by measured costs, and what it takes in fact.

  python -m specdec_t5x.bench hierarchy --target DIR --draft small=DIR tiny=DIR copy \
    --vocabulary FILE --inputs FILE --prefix "translate English to German: " \
    --output DIR

Times an iteration of each network above each draft (judge and drafter, on the first
input; at the least, a middle and the greatest length, and those between them by lines),
and counts how many tokens stand on all inputs; from these follows the fastest hierarchy
of 1, 2 and 3 drafts (`analysis.hierarchy`). Then decodes every input with each of them
in turn, at batch 1: seconds a token without the encoders, and speeds over plain
decoding, as predicted and as measured. Says so where a single draft, or none, is
better. Writes hierarchy.json, hierarchy.csv and hierarchy.md. Leave all cores to it.
"""

import argparse
import itertools
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from specdec_t5x.analysis import hierarchy
from specdec_t5x.analysis.hierarchy import Measured, Plan
from specdec_t5x.api import Model
from specdec_t5x.bench import costs, flags, jobs, parts, programs
from specdec_t5x.bench.command import Command
from specdec_t5x.bench.environment import environment
from specdec_t5x.bench.parts import NEVER
from specdec_t5x.bench.study import Study
from specdec_t5x.bench.table import Column, Table, listed
from specdec_t5x.bench.walltime import Timed, alternate
from specdec_t5x.core.distributions import Sampling
from specdec_t5x.decoding.baseline import generate_plain
from specdec_t5x.decoding.drafter import Drafter
from specdec_t5x.decoding.generate import at_most, generate
from specdec_t5x.drafters.cascade import Cascade
from specdec_t5x.drafters.copy import Copy
from specdec_t5x.drafters.draft_model import DraftModel

TARGET = "target"
_DRAFTS, _RUNS = 20, 9
_COLUMNS = (
  Column("levels", "drafts"),
  Column("plan", "plan, lowest first"),
  Column("tokens_predicted", "tokens a call, predicted"),
  Column("tokens_per_call", "measured"),
  Column("middle_calls", "calls a level, of the target's", 2),
  Column("ms_predicted", "ms a token, predicted", 3),
  Column("ms", "measured", 3),
  Column("speed_predicted", "speed over plain, predicted"),
  Column("speed", "measured"),
  Column("identical", "equal outputs"),
)


def add_flags(parser: argparse.ArgumentParser) -> None:
  """Adds the command's flags."""
  flags.add_pairs(parser)
  parser.set_defaults(num_tokens=None, runs=None)
  add = parser.add_argument
  add("--gamma", type=int, default=8, help="most tokens of a window (%(default)s)")
  add("--levels", type=int, default=3, help="most drafts of a plan (%(default)s)")
  add("--temperature", type=float, default=0.0, help="(%(default)s)")
  flags.add_output(parser, None)


def make(args: argparse.Namespace) -> Table:
  """Measures, plans, and decodes with each plan."""
  study = jobs.from_flags(args)[0].load()
  if not study.drafts:
    raise ValueError("--draft: expected one draft at least, got none.")
  sampling = Sampling(args.temperature)
  measured = measure(study, sampling, args.gamma)
  plans = hierarchy.best_plans(measured, args.levels, args.gamma)
  rows = _rows(study, plans, sampling)
  best = min(plans, key=lambda plan: plan.seconds)
  stand = {f"{j} / {d}": list(map(float, s)) for (j, d), s in measured.survival.items()}
  first = {pair: round(chances[0], 3) for pair, chances in stand.items()}
  facts = {
    "plain": measured.plain,
    "drafts": {name: list(map(float, s)) for name, s in measured.drafts.items()},
    "iterations": {
      f"{j} / {d}": list(map(float, s)) for (j, d), s in measured.iterations.items()
    },
    "survival": stand,
    "best": _text(best),
  }
  return Table(
    "hierarchy",
    f"Hierarchies of drafts, {study.job.task}, temperature {args.temperature:g}",
    _COLUMNS,
    rows,
    (
      _verdict(best),
      f"Chance that a draft's first token stands: {listed(first)}",
      "Windows are fixed.",
      listed({"inputs": len(study.inputs), "batch": 1, "gamma": args.gamma}),
      listed(environment()),
    ),
    vars(args),
    facts,
  )


def measure(study: Study, sampling: Sampling, gamma: int) -> Measured:
  """Returns what plans follow from: iterations timed, standing tokens counted."""
  models = {TARGET: study.target, **{d.name: d.model for d in study.drafts}}
  judges = [name for name, model in models.items() if model is not None]
  names = [name for name in models if name != TARGET]
  pairs = [(judge, name) for judge in judges for name in names if judge != name]
  survival = {pair: stands(study, models, *pair, sampling, gamma) for pair in pairs}
  return Measured(TARGET, *_seconds(study, models, pairs, sampling, gamma), survival)


def stands(
  study: Study,
  models: Mapping[str, Model | None],
  judge: str,
  name: str,
  sampling: Sampling,
  gamma: int,
) -> Float[np.ndarray, "G"]:
  """Returns how often a call gives more than 1, 2, .. gamma tokens.

  Args:
    study: the inputs, and their room.
    models: by name; None copies.
    judge: whose law is kept.
    name: of what drafts.
    sampling: the adjustment of both laws.
    gamma: tokens of a draft.
  """
  drafter = drafter_of(((name, gamma),), models)
  decoder, params = _together(models, judge, drafter)
  room, eos_id = study.job.max_length, study.eos_id

  @jax.jit
  def run(params, inputs, keys):
    counted = []

    def loop(go_on, body, carry):
      def turn(both):
        carry, counts = both
        new = body(carry)
        # An end among the accepted ones takes no token after it.
        stood = new.state.lengths - carry.state.lengths - 1
        return new, counts + jax.nn.one_hot(stood, gamma + 1).sum(axis=0)

      start = carry, jnp.zeros(gamma + 1)
      carry, counts = jax.lax.while_loop(lambda both: go_on(both[0]), turn, start)
      counted.append(counts)
      return carry

    generate(*decoder.prepare(params, inputs, keys, sampling, room, eos_id), loop)
    return counted[-1]

  (keys,) = programs.input_keys(1)
  counts = sum(np.asarray(run(params, text, keys)) for text in study.inputs)
  return (counts[::-1].cumsum()[::-1] / counts.sum())[1:]


def drafter_of(
  levels: Sequence[tuple[str, int]], models: Mapping[str, Model | None]
) -> Drafter | None:
  """Returns the drafter of a plan's levels; None of no level."""
  drafter = None
  for name, size in levels:
    model = models[name]
    if drafter is not None:
      drafter = Cascade(model.network, drafter, size)
    elif model is None:
      drafter = Copy(size)
    else:
      drafter = DraftModel(model.network, size)
  return drafter


def _seconds(study, models, pairs, sampling, gamma):
  """Returns seconds of the target's token, of drafts by name, of iterations by pair."""
  (keys,) = programs.input_keys(1)
  text, room = study.inputs[0], study.job.max_length
  some = sorted({1, (gamma + 1) // 2, gamma})
  plain, params = programs.together(study.target)
  start = lambda *given: plain.prepare(*given, room)
  token = parts.plain_program(start, sampling, room)
  runs = {}
  _add(runs, "plain", token, (params, text, keys), room)
  for judge, name in pairs:
    for size in some:
      drafter = drafter_of(((name, size),), models)
      decoder, params = _together(models, judge, drafter)
      start = lambda *given, decoder=decoder: decoder.prepare(
        *given, sampling, room, NEVER
      )
      programs_of = parts.part_programs(start)
      given = params, text, keys
      _add(
        runs, ((judge, name), size), programs_of["iteration"], given, room // (size + 1)
      )
      _add(runs, (name, size), programs_of["draft"], given, _DRAFTS)
  timed = alternate(runs, range(_RUNS))
  slopes = parts.costs({key: each.seconds for key, each in timed.items()})
  found = {}
  for pair, size in itertools.product(pairs, some):
    parts_of = {"iteration": slopes[pair, size], "draft": slopes[pair[1], size]}
    known = costs.medians(parts_of, size)
    found[pair, size], found[pair[1], size] = known["iteration"], known["draft"]
  every = np.arange(1, gamma + 1)
  curve = lambda what: np.interp(every, some, [found[what, size] for size in some])
  drafts = {name: curve(name) for _, name in pairs}
  iterations = {pair: curve(pair) for pair in pairs}
  return float(np.median(slopes["plain"])), drafts, iterations


def _add(runs, key, run, given, most):
  for count in (0, most):
    runs[key, count] = lambda _, count=count: run(jnp.int32(count), *given)


def _rows(study, plans: Sequence[Plan], sampling) -> list[dict[str, Any]]:
  """Returns a row a plan; all decode every input, in turn."""
  models = {TARGET: study.target, **{d.name: d.model for d in study.drafts}}
  (keys,) = programs.input_keys(1)
  whole, runs = study.job.max_length, {}
  for i, plan in enumerate(plans):
    run, params = _program(study, models, plan, sampling)
    for count in (0, whole):
      runs[i, count] = lambda text, run=run, params=params, n=count: run(
        jnp.int32(n), params, text, keys
      )
  timed = alternate(runs, study.inputs)
  same = timed[0, whole].results if sampling.greedy else ()
  rows = [
    _row(plan, timed[i, 0].seconds, timed[i, whole], same)
    for i, plan in enumerate(plans)
  ]
  # Machines drift: what was timed in turn is compared, plans as decodes.
  for row in rows:
    for name, ms in (("speed_predicted", "ms_predicted"), ("speed", "ms")):
      row[name] = rows[0][ms] / row[ms]
  return rows


def _row(plan: Plan, starts, timed: Timed, plain: Sequence[Any]) -> dict[str, Any]:
  """Returns the row of a plan: what it was expected to take, and what it took."""
  decodes, calls = zip(*timed.results, strict=True)
  total = lambda name: sum(int(getattr(each.statistics, name)[0]) for each in decodes)
  target_calls = total("target_calls")
  ms = 1e3 * (timed.seconds - starts).sum() / total("emitted")
  same = [
    bool((one.tokens == other.tokens).all())
    for one, (other, _) in zip(decodes, plain, strict=False)
  ]
  by_level = [
    sum(int(count[0]) for count in level) for level in zip(*calls, strict=True)
  ]
  return {
    "levels": len(plan.levels),
    "plan": _text(plan),
    "tokens_predicted": plan.tokens_per_call,
    "tokens_per_call": total("emitted") / target_calls,
    "middle_calls": ", ".join(f"{count / target_calls:.2f}" for count in by_level),
    "ms_predicted": 1e3 * plan.seconds,
    "ms": ms,
    "identical": f"{sum(same)}/{len(same)}" if same else "sampled",
  }


def _program(study, models, plan, sampling):
  """Returns a program of (count, ..): a decode, and the calls of its middle levels."""
  room, eos_id = study.job.max_length, study.eos_id
  drafter = drafter_of(plan.levels, models)
  decoder, params = _together(models, TARGET, drafter)

  @jax.jit
  def run(count, params, inputs, keys):
    if drafter is None:
      extend, state = decoder.prepare(params, inputs, keys, room)
      loop = at_most(count)
      return generate_plain(extend, sampling, state, room, eos_id, loop=loop), ()
    kept = []

    def loop(*given):
      kept.append(at_most(count)(*given))
      return kept[-1]

    start = decoder.prepare(params, inputs, keys, sampling, room, eos_id)
    decoded = generate(*start, loop)
    return decoded, _calls(kept[-1].state.drafter_state)

  return run, params


def _calls(drafter_state) -> tuple[jax.Array, ...]:
  """Returns the calls of the networks between target and lowest draft, from above."""
  if not hasattr(drafter_state, "calls"):
    return ()
  return (drafter_state.calls, *_calls(drafter_state.lower))


def _together(models, judge: str, drafter: Drafter | None):
  """Returns a decoder and its parameters, networks found by what they are."""
  needed = {} if drafter is None else drafter.networks
  by_network = {id(m.network): m for m in models.values() if m is not None}
  drafts = {name: by_network[id(network)] for name, network in needed.items()}
  return programs.together(models[judge], drafts or None, drafter)


def _text(plan: Plan) -> str:
  return " < ".join(f"{name} {size}" for name, size in plan.levels) or "plain"


def _verdict(best: Plan) -> str:
  """Returns which number of levels is best, in a line."""
  said = ("No draft pays here", "A single draft is best")
  text = said[len(best.levels)] if len(best.levels) < 2 else "A hierarchy is best"
  return f"{text}: {_text(best)}, {1e3 * best.seconds:.3f} ms a token predicted."


COMMAND = Command(__doc__, make, add_flags)
