"""Measures alpha over requests while the draft learns and the domain changes."""

import argparse
import dataclasses
import functools
import pathlib
import sys
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
from tqdm import tqdm

from benchmarks import jobs
from benchmarks.cells import Cells
from benchmarks.command import Command, new_figure
from benchmarks.environment import machine
from benchmarks.measure import COUNTED, Measured, Setting
from benchmarks.study import fingerprint
from benchmarks.table import Table, listed, render
from specdec_t5x import api
from specdec_t5x.contrib.online import serving
from specdec_t5x.contrib.online.learner import Learner, Online
from specdec_t5x.core.distributions import Sampling
from specdec_t5x.training.optimizers import Optimizer, Schedule

CONTROL = "none: the control"
_OF_STEPS = "optimizer", "learning_rate"


def make(args: argparse.Namespace) -> Table:
  """Serves every domain without learning, then with each loss."""
  if not (args.target and args.vocabulary and len(args.draft or ()) == 1):
    raise ValueError(
      "Expected one checkpoint of --target and of --draft, and --vocabulary, got "
      f"{args.target}, {args.draft} and {args.vocabulary}. Give all three flags."
    )
  domains, eos_id = _read(args)
  models = [api.load_model(path) for path in (args.target, *args.draft)]
  cells = Cells(args.output)
  results = {}
  for loss in (None, *args.losses):
    measure = functools.partial(serve, args, models, domains, eos_id, loss)
    results[loss or CONTROL] = cells.get(_key(args, models, domains, loss), measure)
  control = results[CONTROL]
  rows = [row for way in results for row in _rows(args, way, results[way], control)]
  times = [
    {
      "domain": domain,
      "learns": way,
      "requests": len(counts["outputs"]),
      **{name: counts[name] for name in ("serving", "learning")},
    }
    for way, of_domains in results.items()
    for domain, counts in of_domains.items()
  ]
  settings = ("gamma", "temperature", "interval", "kept"), _OF_STEPS
  notes = [listed({name: getattr(args, name) for name in each}) for each in settings]
  before = [render("online.times", times, package="lab")]
  return render("online", rows, notes=notes, package="lab", before=before)


def _read(args) -> tuple[dict[str, list[list[int]]], int]:
  """Returns the token ids of the requests by domain, and the EOS id."""
  requests = {}
  for domain in args.domain:
    name, _, path = domain.partition("=")
    if not path or not pathlib.Path(path).is_file():
      raise ValueError(f"--domain {domain}: expected NAME=FILE, of a file that exists.")
    lines = [args.prefix + x for x in pathlib.Path(path).read_text().splitlines() if x]
    ids, eos_id = jobs.encoded(args.vocabulary, lines, prompts=False)
    ids = [x for x in ids if len(x) <= args.input_length][: args.requests]
    if len(ids) < args.requests:
      raise ValueError(
        f"--domain {domain}: expected --requests={args.requests} lines of at most "
        f"--input-length={args.input_length} tokens, got {len(ids)}. Lower --requests."
      )
    requests[name] = ids
  return requests, eos_id


def _online(args, loss: str | None) -> Online:
  schedule = Schedule("constant", args.learning_rate, 0)
  optimizer = Optimizer(schedule, args.optimizer)
  return Online(args.interval, args.kept, loss or "forward_kl", optimizer)


def _key(args, models, domains, loss):
  # The control's key has the interval too: the interval is the batch size.
  names = "interval", "gamma", "temperature", "input_length", "max_length"
  return {
    "models": [fingerprint(model.params) for model in models],
    "domains": {
      name: fingerprint([np.array(x) for x in ids]) for name, ids in domains.items()
    },
    "online": loss and dataclasses.asdict(_online(args, loss)),
    **{name: getattr(args, name) for name in names},
    **machine(),
  }


class _Clocked(Learner):
  """A learner with a clock; the control's learner learns nothing."""

  learns = True
  seconds = 0.0

  def learn(self, served):
    start = time.perf_counter()
    if self.learns:
      super().learn(served)
    self.seconds += time.perf_counter() - start


def serve(args, models, domains, eos_id, loss) -> dict[str, dict]:
  """Returns the counts per request and the seconds of each domain."""
  target, draft = models
  learner = _Clocked(draft.network, draft.params, _online(args, loss))
  learner.learns = loss is not None
  decoder, params = serving.together(
    target, learner, "token", args.gamma, args.interval
  )
  sampling = Sampling(args.temperature)
  decoder.check(sampling, args.max_length, 1)
  run = api.compiled(decoder, sampling, args.max_length, eos_id)
  counts = {}
  for name, ids in domains.items():
    learner.seconds = 0.0
    start = time.perf_counter()
    decodes = serving.decodes(run, params, learner, ids, args.input_length, 0)
    decodes = tqdm(decodes, name, file=sys.stderr)
    served = [(decode.statistics, np.asarray(decode.tokens)) for decode in decodes]
    seconds = time.perf_counter() - start
    columns = {
      column: np.concatenate([getattr(info, column) for info, _ in served]).tolist()
      for column in COUNTED
    }
    counts[name] = {
      **columns,
      # Fingerprints, to compare outputs with the control's.
      "outputs": [fingerprint([row])[:16] for _, rows in served for row in rows],
      "serving": seconds - learner.seconds,
      "learning": learner.seconds,
    }
  return counts


def _rows(args, way: str, found, control) -> Iterator[dict]:
  """Yields a row per window of each domain."""
  setting = Setting(args.gamma, args.temperature)
  is_control = way == CONTROL
  for domain, counts in found.items():
    for first in range(0, len(counts["outputs"]), args.window):
      window = slice(first, first + args.window)
      ours, unlearned = (
        Measured(setting, {name: np.array(x[name][window]) for name in COUNTED})
        for x in (counts, control[domain])
      )
      outputs = (np.array(x["outputs"][window]) for x in (counts, control[domain]))
      same = np.equal(*outputs)
      over = ours.alpha.value - unlearned.alpha.value
      yield {
        "domain": domain,
        "learns": way,
        "first": first,
        "last": first + ours.inputs,
        "alpha": ours.alpha,
        "over_control": None if is_control else over,
        "tokens_per_call": ours.tokens_per_call,
        "equal": None if is_control else f"{same.sum()} of {ours.inputs}",
      }


def draw(table: Table) -> Any:
  """Returns the figure: alpha over requests, a curve per loss."""
  figure, (axis,) = new_figure(7, 4)
  requests = table.settings["requests"]
  domains = list(dict.fromkeys(row["domain"] for row in table.rows))
  for way in dict.fromkeys(row["learns"] for row in table.rows):
    rows = [row for row in table.rows if row["learns"] == way]
    at = [domains.index(r["domain"]) * requests + r["last"] for r in rows]
    axis.plot(at, [r["alpha"].value for r in rows], marker=".", label=way)
  for i, domain in enumerate(domains):
    axis.axvline(i * requests, color="0.6", linewidth=0.8)
    at = (i + 0.5) / len(domains)
    axis.text(at, 1.01, domain, ha="center", transform=axis.transAxes)
  axis.set(xlabel="requests served", ylabel="alpha", xlim=(0, len(domains) * requests))
  axis.legend(title="the draft learns by", fontsize=8)
  return figure


COMMAND = Command("online", make, package="lab", draw=draw)
