r"""Alpha over requests while the draft learns, and the texts' domain changes.

  python -m specdec_t5x.bench online --target DIR --draft DIR --vocabulary FILE \
    --domain captions=FILE --domain short=FILE --domain news=FILE \
    --prefix "translate English to German: " --output DIR

Serves the first requests of each file, an input a line, one domain after the other,
with a draft that learns by each loss, and with one that does not, the control. Alpha,
accepted tokens over tried ones, is that of requests as they are served, before anything
was learned from them. Each way's numbers are kept as soon as it has served all. Seconds
are of all of a domain, on this machine as it then is; leave all cores to it where they
matter.
"""

import argparse
import dataclasses
import pathlib
import sys
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import sentencepiece
from tqdm import tqdm

from specdec_t5x import api
from specdec_t5x.analysis.acceptance import ratio
from specdec_t5x.bench import plotting
from specdec_t5x.bench.cells import Cells
from specdec_t5x.bench.command import REQUIRED, Command
from specdec_t5x.bench.environment import machine
from specdec_t5x.bench.pairs import fingerprint
from specdec_t5x.bench.table import Table, columns, listed
from specdec_t5x.core.distributions import Sampling
from specdec_t5x.drafters.draft_model import DEFAULT_GAMMA
from specdec_t5x.training import losses, serving
from specdec_t5x.training.online import Learner, Online
from specdec_t5x.training.optimizers import OPTIMIZERS, Optimizer, Schedule

CONTROL = "none: the control"
_TIMES = columns(
  "domain | learns | requests | serving:0 serving, s | learning:0 learning, s"
)
_COLUMNS = columns(
  "domain | learns | first requests from | last to | alpha:3 | "
  "over_control:3?- over the control | tokens_per_call tokens a call | "
  "equal?- equal outputs"
)


def make(args: argparse.Namespace) -> Table:
  """Serves all domains with each way to learn, and with none."""
  domains = dict(_read(args))
  models = [api.load_model(path) for path in (args.target, args.draft)]
  cells, found = Cells(args.output), {}
  for loss in (None, *args.losses):
    serve = lambda loss=loss: _serve(args, models, domains, loss)
    found[loss or CONTROL] = cells.get(_key(args, models, domains, loss), serve)
  rows = [row for way in found for row in _rows(args, way, found[way], found[CONTROL])]
  times = [
    {
      "domain": domain,
      "learns": way,
      "requests": len(counts["tried"]),
      **{name: counts[name] for name in ("serving", "learning")},
    }
    for way, of_domains in found.items()
    for domain, counts in of_domains.items()
  ]
  of = lambda *names: listed({name: getattr(args, name) for name in names})
  notes = (
    "alpha: accepted over tried tokens, [95% interval], requests as the unit, before "
    "the draft learned from them. Domains are served in this order by one draft.",
    of("gamma", "temperature", "interval", "kept"),
    of("optimizer", "learning_rate"),
  )
  before = [Table("times", "Seconds", _TIMES, times)]
  title = "Alpha while the draft learns"
  facts = {"times": times}
  return Table("online", title, _COLUMNS, rows, notes, facts=facts, before=before)


def _read(args) -> Iterator[tuple[str, list[list[int]]]]:
  """Yields each domain's name and the tokens of its requests."""
  processor = sentencepiece.SentencePieceProcessor(model_file=args.vocabulary)
  for domain in args.domain:
    name, _, path = domain.partition("=")
    if not path or not pathlib.Path(path).is_file():
      raise ValueError(
        f"--domain {domain}: expected NAME=FILE, of a file that is there."
      )
    lines = pathlib.Path(path).read_text().splitlines()
    ids = [[*processor.encode(args.prefix + x), processor.eos_id()] for x in lines if x]
    ids = [x for x in ids if len(x) <= args.input_length][: args.requests]
    if len(ids) < args.requests:
      raise ValueError(
        f"--domain {domain}: expected --requests={args.requests} lines of at most "
        f"--input-length={args.input_length} tokens, got {len(ids)}. Lower --requests."
      )
    yield name, ids


def _online(args, loss: str | None) -> Online:
  schedule = Schedule("constant", args.learning_rate, 0)
  optimizer = Optimizer(schedule, args.optimizer)
  return Online(args.interval, args.kept, loss or "forward_kl", optimizer)


def _key(args, models, domains, loss):
  # A control serves as many at once: the interval counts for it, too.
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


@dataclasses.dataclass
class _Clocked:
  """A learner whose seconds are counted; the control's learns nothing."""

  learner: Learner
  is_control: bool
  seconds: float = 0.0

  @property
  def online(self):
    return self.learner.online

  @property
  def params(self):
    return self.learner.params

  @property
  def steps(self):
    return self.learner.steps

  def learn(self, served):
    if self.is_control:
      return
    start = time.perf_counter()
    self.learner.learn(served)
    self.seconds += time.perf_counter() - start


def _serve(args, models, domains, loss) -> dict[str, dict]:
  """Returns each domain's counts, a number a request, and its seconds."""
  target, draft = models
  learner = Learner(draft.network, draft.params, _online(args, loss))
  decoder, params = serving.together(
    target, learner, None, "token", args.gamma, args.interval
  )
  processor = sentencepiece.SentencePieceProcessor(model_file=args.vocabulary)
  sampling, room = Sampling(args.temperature), args.max_length
  decoder.check(sampling, room, 1)
  run = api.compiled(decoder, sampling, room, processor.eos_id())
  clocked, found = _Clocked(learner, loss is None), {}
  for name, ids in domains.items():
    clocked.seconds, start = 0.0, time.perf_counter()
    decodes = serving.decodes(run, params, clocked, ids, args.input_length, 0)
    columns = [_counts(decoded) for decoded in tqdm(decodes, name, file=sys.stderr)]
    counts = {n: [x for c in columns for x in c[n]] for n in columns[0]}
    seconds = time.perf_counter() - start
    found[name] = {
      **counts,
      "serving": seconds - clocked.seconds,
      "learning": clocked.seconds,
    }
  return found


def _counts(decoded) -> dict[str, list]:
  info = decoded.statistics
  columns = {
    "accepted": info.accepted,
    "tried": info.acceptance_positions,
    "tokens": info.emitted,
    "calls": info.target_calls,
  }
  columns = {name: np.asarray(x).tolist() for name, x in columns.items()}
  outputs = np.asarray(decoded.tokens)
  # Whether two ways have the same outputs is told by these.
  digests = [fingerprint([row])[:16] for row in outputs]
  return {**columns, "outputs": digests}


def _rows(args, way: str, found, control) -> Iterator[dict]:
  """Yields a row for each window of each domain."""
  for domain, counts in found.items():
    plain, count = control[domain], len(counts["tried"])
    for first in range(0, count, args.window):
      of = lambda column, first=first: column[first : first + args.window]
      alpha, unlearned = (
        ratio(of(x["accepted"]), of(x["tried"])) for x in (counts, plain)
      )
      same = sum(map(str.__eq__, of(counts["outputs"]), of(plain["outputs"])))
      is_control, last = way == CONTROL, min(first + args.window, count)
      yield {
        "domain": domain,
        "learns": way,
        "first": first,
        "last": last,
        "alpha": alpha,
        "over_control": None if is_control else alpha.value - unlearned.value,
        "tokens_per_call": ratio(of(counts["tokens"]), of(counts["calls"])),
        "equal": None if is_control else f"{same} of {last - first}",
      }


def draw(table: Table) -> Any:
  """Returns the figure: alpha over requests, a curve a way."""
  figure, (axis,) = plotting.new_figure(7, 4)
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


_LOSSES = [*losses.DISTILLATION_LOSSES]
COMMAND = Command(
  __doc__,
  make,
  {
    "target": (str, "checkpoint", REQUIRED),
    "draft": (str, "checkpoint", REQUIRED),
    "vocabulary": (str, "a SentencePiece model", REQUIRED),
    "prefix": ("", "before each line"),
    "domain": (
      [str],
      "texts in the order that they are served, an input a line; several",
      REQUIRED,
      {"action": "extend", "metavar": "NAME=FILE"},
    ),
    "requests": (2000, "of each domain"),
    "losses": (_LOSSES[:2], "by which the draft learns", _LOSSES),
    "interval": (Online.interval, "requests a step"),
    "kept": (Online.kept, "tokens of a distribution"),
    "optimizer": ("adamw", "", OPTIMIZERS),
    "learning_rate": (1e-3, "constant"),
    "gamma": DEFAULT_GAMMA,
    "temperature": 0.0,
    "input_length": (64, "longer lines are left out"),
    "max_length": 64,
    "window": (500, "requests a row"),
  },
  draw=draw,
)
