"""Plans the best hierarchy of drafts from measured costs, and times the plans."""

import argparse
import dataclasses
import itertools
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from benchmarks import jobs
from benchmarks.command import Command
from benchmarks.measure import PLAIN, Measured, Setting
from benchmarks.study import Decode, Study
from benchmarks.table import Table, listed, render
from benchmarks.timed import Timed, alternate, medians, repeated, slopes
from lab.hierarchy import planner
from lab.hierarchy.planner import Plan
from specdec_t5x.api import Model
from specdec_t5x.core.distributions import Sampling
from specdec_t5x.decoding.loop import generate
from specdec_t5x.drafters.cascade import Cascade
from specdec_t5x.drafters.copy import Copy
from specdec_t5x.drafters.draft_model import DraftModel
from specdec_t5x.tuning import at_most

TARGET = "target"
_RUNS = 9
# (name, length) of every draft, the lowest draft first.
Levels = Sequence[tuple[str, int]]


def make(args: argparse.Namespace) -> Table:
  """Measures, plans, and decodes with each plan."""
  study = jobs.load(args)
  sampling = Sampling(args.temperature)
  measured = measure(study, sampling, args.gamma)
  plans = planner.best_plans(measured, args.levels, args.gamma)
  rows = _rows(study, plans, sampling)
  best = min(plans, key=lambda plan: plan.seconds)

  def by_pair(curves):
    return {" / ".join(pair): curve.tolist() for pair, curve in curves.items()}

  survival = by_pair(measured.survival)
  first = {pair: round(chances[0], 3) for pair, chances in survival.items()}
  facts = {
    "plain": measured.plain,
    "drafts": {name: lengths.tolist() for name, lengths in measured.drafts.items()},
    "iterations": by_pair(measured.iterations),
    "survival": survival,
    "best": _text(best),
  }
  words = {"task": study.job.task, "temperature": args.temperature}
  words |= {"verdict": _verdict(best), "first": listed(first)}
  notes = [listed({"inputs": len(study.inputs), "batch": 1, "gamma": args.gamma})]
  return render("hierarchy", rows, words, notes=notes, package="lab", facts=facts)


def measure(study: Study, sampling: Sampling, gamma: int) -> planner.Measured:
  """Returns the inputs of plans: times of iterations, counts of accepted tokens."""
  models = models_of(study)
  judges = [name for name, model in models.items() if model is not None]
  names = [name for name in models if name != TARGET]
  pairs = [(judge, name) for judge in judges for name in names if judge != name]

  def decode(judge, name, size):
    return _decode(study, judge, ((name, size),), sampling)

  survival = {pair: stands(study, decode(*pair, gamma), gamma) for pair in pairs}
  seconds = _seconds(study, decode, pairs, sampling, gamma)
  return planner.Measured(TARGET, *seconds, survival)


def stands(study: Study, decode: Decode, gamma: int) -> Float[np.ndarray, "G"]:
  """Returns the share of calls with more than 1, 2, .. gamma tokens."""

  @jax.jit
  def run(*arguments):
    ctx, state = decode.start(*arguments)
    observe = Standing(gamma)
    state = state.replace(observed=observe.start(state.lengths.size, ctx.max_length))
    decoded = generate(ctx, state, observe=observe)
    return decoded.observed.sum(axis=0)

  counts = sum(np.asarray(run(*decode.given(text))) for text in study.inputs)
  return (counts[::-1].cumsum()[::-1] / counts.sum())[1:]


def models_of(study: Study) -> dict[str, Model | None]:
  """Returns the models of target and drafts by name; None for a copying draft."""
  return {TARGET: study.target, **{d.name: d.model for d in study.drafts}}


def _decode(study: Study, judge: str, levels: Levels, sampling: Sampling) -> Decode:
  """Returns decoding of a judge with a hierarchy of drafts; plain without drafts."""
  models = models_of(study)
  drafter = None
  for name, size in levels:
    model = models[name]
    if drafter is not None:
      drafter = Cascade(model.network, drafter, size)
    else:
      drafter = DraftModel(model.network, size) if model else Copy(size)
  needed = drafter.networks if drafter else {}
  by_network = {id(model.network): model for model in models.values() if model}
  drafts = {name: by_network[id(network)] for name, network in needed.items()}
  study = dataclasses.replace(study, target=models[judge])
  return study.decode(sampling.temperature, drafts or None, drafter)


def _seconds(study, decode, pairs, sampling, gamma):
  """Returns the seconds of a plain token, of drafts by name, of iterations by pair."""
  text = study.inputs[0]
  sizes = sorted({1, (gamma + 1) // 2, gamma})
  loops = {PLAIN: study.decode(sampling.temperature).loop(text)}
  for pair, size in itertools.product(pairs, sizes):
    decoding = decode(*pair, size)
    loops[pair, size] = decoding.loop(text)
    loops[pair[1], size] = decoding.loop(text, redrafts=True)
  turns = slopes(alternate(repeated(loops), range(_RUNS)))
  seconds = {}
  for pair, size in itertools.product(pairs, sizes):
    seconds[pair, size] = medians({"iteration": turns[pair, size]})["iteration"]
    draft = np.median(turns[pair[1], size] - turns[pair, size])
    seconds[pair[1], size] = max(float(draft), 0.0)  # Copying may be lost in noise.
  every = np.arange(1, gamma + 1)

  def curve(key):
    return np.interp(every, sizes, [seconds[key, size] for size in sizes])

  drafts = {name: curve(name) for _, name in pairs}
  iterations = {pair: curve(pair) for pair in pairs}
  return float(np.median(turns[PLAIN])), drafts, iterations


def _rows(study, plans: Sequence[Plan], sampling) -> list[dict[str, Any]]:
  """Decodes every input with the plans in turn and returns a row per plan."""
  max_length = study.job.max_length
  runs = {}
  for i, plan in enumerate(plans):
    decode = _decode(study, TARGET, plan.levels, sampling)
    compiled = counting_calls(decode)
    for count in (0, max_length):

      def run(text, compiled=compiled, decode=decode, count=count):
        return compiled(count, *decode.given(text))

      runs[i, count] = run
  timed = alternate(runs, study.inputs)
  setting = Setting(0, sampling.temperature)
  decodes = {}
  rows = []
  for i, plan in enumerate(plans):
    results, calls = zip(*timed[i, max_length].results, strict=True)
    decodes[i] = Timed(timed[i, max_length].seconds - timed[i, 0].seconds, results)
    # Machines drift, so only times that were taken in turn are compared.
    cell = Measured.timed(setting, decodes[i], decodes[0])
    by_level = [sum(int(n[0]) for n in level) for level in zip(*calls, strict=True)]
    target_calls = cell.columns["target_calls"].sum()
    values = cell.row()
    row = {
      **values,
      "levels": len(plan.levels),
      "plan": _text(plan),
      "tokens_predicted": plan.tokens_per_call,
      "middle_calls": ", ".join(f"{count / target_calls:.2f}" for count in by_level),
      "ms_predicted": 1e3 * plan.seconds,
      "ms": 1e3 * float(decodes[i].seconds.sum()) / values["tokens"],
      "speed_predicted": plans[0].seconds / plan.seconds,
      "speed": values["in_all"],
    }
    rows.append(row)
  return rows


def _text(plan: Plan) -> str:
  return " < ".join(f"{name} {size}" for name, size in plan.levels) or "plain"


def _verdict(best: Plan) -> str:
  """Returns a sentence about the best number of levels."""
  openings = ("No draft pays here", "A single draft is best")
  text = openings[len(best.levels)] if len(best.levels) < 2 else "A hierarchy is best"
  return f"{text}: {_text(best)}, {1e3 * best.seconds:.3f} ms a token predicted."


@dataclasses.dataclass(frozen=True)
class Standing:
  """An observer that counts iterations by the number of accepted tokens."""

  gamma: int  # Most tokens of a draft.

  def start(self, rows: int, max_length: int) -> Float[Array, "B N"]:
    """Returns zero counts for 0 to gamma tokens."""
    del max_length
    return jnp.zeros((rows, self.gamma + 1))

  def observe(self, kept: Float[Array, "B N"], before: Any, iteration: Any):
    """Adds the counts of an iteration."""
    del before
    # No token follows an accepted EOS, so the EOS counts as the judge's token.
    return kept + jax.nn.one_hot(iteration.info.emitted - 1, self.gamma + 1)


def counting_calls(decode: Decode):
  """Returns a compiled function of (count, params, inputs, keys).

  The function decodes for at most `count` iterations. It also returns the calls of the
  networks between the target and the lowest draft, the highest network first.
  """

  @jax.jit
  def run(count, *arguments):
    how, state = decode.start(*arguments)
    loop = at_most(count)
    states = []

    def keeping(*args):
      states.append(loop(*args))
      return states[-1]

    decoded = generate(how, state, keeping)
    return decoded, _calls(states[-1][0].drafter_state)

  return run


def _calls(drafter_state) -> tuple[jax.Array, ...]:
  if not hasattr(drafter_state, "calls"):
    return ()
  return (drafter_state.calls, *_calls(drafter_state.lower))


COMMAND = Command("hierarchy", make, package="lab")
