"""Measures a draft in another process: bits, alpha and time by kept tokens K."""

import argparse
import contextlib
import dataclasses
from collections.abc import Iterator

import jax

from benchmarks import jobs
from benchmarks.command import Command
from benchmarks.measure import PLAIN, Run, Setting, Way, measure
from benchmarks.study import Study
from benchmarks.table import Column, Table, listed, render
from benchmarks.timed import Program
from lab.link import process
from lab.link.bits import probs_bits, token_bits
from specdec_t5x.contrib.link.client import Remote
from specdec_t5x.contrib.link.drafter import Link
from specdec_t5x.contrib.sparse import SparseDraft
from specdec_t5x.contrib.truncation import Truncation
from specdec_t5x.drafters.draft_model import DraftModel

_UNROUNDED = "all, float32"  # The distribution of a draft in the target's process.


def make(args: argparse.Namespace) -> Table:
  """Decodes every input with each K, then some inputs over each link."""
  study = jobs.load(args)
  if study.drafts[0].drafter not in ("draft_model", "ngram"):
    raise ValueError(
      "--draft: a link needs a draft model or a table of n-grams, got "
      f"{study.drafts[0].drafter!r}. Pass --draft NAME=DIR."
    )
  over = process.drafting(study.drafts[0].source, study.job.dtype)
  with over if args.num_timed else contextlib.nullcontext() as address:
    rows = [row for t in args.temperatures for row in _rows(study, t, address, args)]
  words = {"task": study.job.task, "draft": study.drafts[0].name}
  columns = []
  if args.num_timed:
    columns.append(Column("received", "counted, to the target", 0, "-"))
    columns.append(Column("sent", "and from it", 0, "-"))
    for speed in args.mbits:
      columns.append(Column(_named(speed), f"speed-up at {speed:g} Mbit/s"))
  notes = [listed({"inputs": len(study.inputs), "gamma": args.gamma})]
  words["delay"] = args.delay_ms
  return render("link", rows, words, columns, notes, package="lab")


def _named(speed: float) -> str:
  return f"speedup_{speed:g}_mbits".replace(".", "_")


def _rows(
  study: Study, temperature: float, address: str | None, args
) -> Iterator[dict]:
  """Yields a row for each K."""
  model = study.drafts[0].model
  size = study.target.network.config.vocab_size
  setting = Setting(args.gamma, temperature)
  # Greedy decoding sends no distribution, so K has no effect.
  kept = args.top_k if temperature else args.top_k[:1]
  timed = _timed(study, kept, setting, address, args) if address else {}
  drafts = {k: SparseDraft(model.network, args.gamma, Truncation(k)) for k in kept}
  if temperature:
    drafts = {_UNROUNDED: DraftModel(model.network, args.gamma), **drafts}
  ways = {}
  for k, drafter in drafts.items():
    decode = study.decode(temperature, model, drafter)
    ways[k] = Way(study.grouped(decode, args.batch))
  run = Run(
    lambda *_: ways,
    study.groups,
    batches=[args.batch],
    setting=dataclasses.replace(setting, timed=False),
  )
  for row in measure(run):
    k = row.key
    bits = None if k == _UNROUNDED else probs_bits(k or size, size)
    yield {
      "temperature": f"{temperature:g}",
      "kept": (k or f"all, {size}") if temperature else "-",
      "bits": bits if temperature else token_bits(size),
      "alpha": row.cell.alpha_by_mass,
      "tokens_per_call": row.cell.tokens_per_call,
      **timed.get(k, {}),
    }


def _timed(study: Study, kept, setting: Setting, address: str, args) -> dict:
  """Returns the speed-up over each link and the counted bits, by K."""
  remotes = {speed: Remote(address, speed, args.delay_ms) for speed in args.mbits}
  plain = study.grouped(study.decode(setting.temperature), 1)
  runs = {}
  for k in kept:
    for speed, remote in remotes.items():
      link = Link(remote, args.gamma, Truncation(k))
      decode = study.decode(setting.temperature, None, link)
      runs[k, speed] = _Counted(study.grouped(decode, 1), remote)
  ways = {PLAIN: Way(plain), **{key: Way(run) for key, run in runs.items()}}
  run = Run(
    lambda *_: ways, lambda _: study.groups(1)[: args.num_timed], setting=setting
  )
  cells = {row.key: row.cell for row in measure(run)}
  results = {k: {} for k in kept}
  for (k, speed), run in runs.items():
    results[k] |= {_named(speed): cells[k, speed].speedup, **run.bits_a_token()}
  return results


@dataclasses.dataclass
class _Counted:
  """A program that counts the bits over the link."""

  program: Program
  remote: Remote
  sent: int = 0
  received: int = 0
  tokens: int = 0

  def __call__(self, number):
    before = self.remote.counts()
    decoded = jax.block_until_ready(self.program(number))
    after = self.remote.counts()
    since = {name: after[name] - before[name] for name in after}
    if since["lost"]:
      raise ValueError(
        "The draft's process was lost during the measurement. Run the command again, "
        "with every core free."
      )
    self.sent += since["bits_sent"]
    self.received += since["bits_received"]
    self.tokens += since["tokens"]
    return decoded

  def bits_a_token(self) -> dict[str, float]:
    """Returns the bits of the messages over drafted tokens, by direction."""
    return {"received": self.received / self.tokens, "sent": self.sent / self.tokens}


COMMAND = Command("link", make, package="lab")
