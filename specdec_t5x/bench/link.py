r"""A draft in another process: kept tokens K against bits, alpha and time.

  python -m specdec_t5x.bench link --target DIR --draft small=DIR --vocabulary FILE \
    --inputs FILE --prefix "translate English to German: " --output DIR

Alpha and tokens a call are of every input, drafted in this process from the law cut to
K tokens and rounded to 16 bits, which the link sends. Then the first --num-timed
inputs are decoded at batch 1 over a link of each bandwidth (the draft in a process of
its own, bandwidth and delay emulated), and plainly, in turn; their bits are counted.
At temperature 0 tokens are certain, and no law is sent. Writes link.json, link.csv and
link.md. Leave all cores to it, or give --num-timed 0.
"""

import argparse
import contextlib
import dataclasses
import sys
from collections.abc import Iterator

import jax
import numpy as np
from tqdm import tqdm

from specdec_t5x import api
from specdec_t5x.analysis.acceptance import Estimate, ratio
from specdec_t5x.bench import flags, jobs, programs
from specdec_t5x.bench.command import Command
from specdec_t5x.bench.environment import environment
from specdec_t5x.bench.measured import Measured, Setting
from specdec_t5x.bench.study import Study
from specdec_t5x.bench.table import Column, Table, listed
from specdec_t5x.bench.walltime import alternate
from specdec_t5x.core.distributions import Sampling
from specdec_t5x.core.sparse import law_bits, token_bits
from specdec_t5x.decoding.drafter import Drafter
from specdec_t5x.decoding.state import row_keys
from specdec_t5x.drafters.draft_model import DEFAULT_GAMMA, DraftModel
from specdec_t5x.drafters.link import Link
from specdec_t5x.drafters.sparse import SparseDraft
from specdec_t5x.link import process
from specdec_t5x.link.client import Remote

_UNROUNDED = "all, float32"  # As a draft in one process with its target has it.


def add_flags(parser: argparse.ArgumentParser) -> None:
  """Adds the command's flags."""
  flags.add_pairs(parser)
  parser.set_defaults(num_tokens=None, runs=None)
  flags.add_temperatures(parser)
  add = parser.add_argument
  add("--gamma", type=int, default=DEFAULT_GAMMA, help="tokens a draft (%(default)s)")
  kept = [1, 4, 8, 16, 32, 64, 0]
  add("--top-k", type=int, nargs="+", default=kept, help="K; 0 is all (%(default)s)")
  speeds = [1.0, 10.0, 100.0]
  add("--mbits", type=float, nargs="+", default=speeds, help="Mbit/s (%(default)s)")
  about = "of the link, each way (%(default)s)"
  add("--delay-ms", type=float, default=1.0, help=about)
  about = "inputs decoded over the link; 0 is none (%(default)s)"
  add("--num-timed", type=int, default=16, help=about)
  add("--batch", type=int, default=16, help="of what is not timed (%(default)s)")
  add("--seed", type=int, default=0, help="of the sampling (%(default)s)")
  flags.add_output(parser, None)


def make(args: argparse.Namespace) -> Table:
  """Decodes every input with each K, then some of them over each link."""
  study = jobs.from_flags(args)[0].load()
  if study.drafts[0].drafter not in ("draft_model", "ngram"):
    raise ValueError("--draft: a link needs a draft model or a table of n-grams.")
  source = study.drafts[0].source
  over = process.drafting(source, study.job.dtype)
  with over if args.num_timed else contextlib.nullcontext() as address:
    rows = [row for t in args.temperatures for row in _rows(study, t, address, args)]
  notes = (
    "Alpha: mean of sum min(p, q) over the tried tokens; tokens a call of the target; "
    "[95% interval]. Bits: of a drafted token and its law, K (16 + ceil(log2 V)) + "
    "ceil(log2 V); counted: all bits of messages over drafted tokens, to the target "
    "and from it, heads included, gRPC's own and TCP's not. Speed-up: plain decoding's "
    "seconds a token over ours, median input [quartiles], the draft in another process "
    f"of this machine behind an emulated link with {args.delay_ms:g} ms each way.",
    listed({"inputs": len(study.inputs), "gamma": args.gamma}),
    listed(environment()),
  )
  title = f"A draft in another process, {study.job.task}, draft {study.drafts[0].name}"
  return Table("link", title, _columns(args), rows, notes, vars(args))


def _columns(args) -> tuple[Column, ...]:
  timed = (
    Column("received", "counted, to the target", 0, missing="-"),
    Column("sent", "and from it", 0, missing="-"),
    *(Column(_named(speed), f"speed-up at {speed:g} Mbit/s") for speed in args.mbits),
  )
  return (
    Column("temperature", "T"),
    Column("kept", "K"),
    Column("bits", "bits", missing="-"),
    Column("alpha", "alpha", 3),
    Column("tokens_per_call", "tokens a call"),
    *(timed if args.num_timed else ()),
  )


def _named(speed: float) -> str:
  return f"speedup_{speed:g}_mbits"


def _rows(
  study: Study, temperature: float, address: str | None, args
) -> Iterator[dict]:
  """Yields a row for each K."""
  network, size = study.drafts[0].model.network, study.target.network.config.vocab_size
  # Greedily nothing of a law is sent.
  kept = args.top_k if temperature else args.top_k[:1]
  timed = _timed(study, kept, temperature, address, args) if address else {}
  whole = {_UNROUNDED: DraftModel(network, args.gamma)} if temperature else {}
  drafts = whole | {k: SparseDraft(network, args.gamma, k) for k in kept}
  for k, drafter in tqdm(drafts.items(), desc=f"T={temperature:g}", file=sys.stderr):
    bits = None if k == _UNROUNDED else law_bits(k or size, size)
    yield {
      "temperature": f"{temperature:g}",
      "kept": (k or f"all, {size}") if temperature else "-",
      "bits": bits if temperature else token_bits(size),
      **_acceptance(study, drafter, temperature, args),
      **timed.get(k, {}),
    }


def _acceptance(
  study: Study, drafter: Drafter, temperature: float, args
) -> dict[str, Estimate]:
  """Returns alpha and tokens a call over all inputs."""
  decoder, params = programs.together(
    study.target, study.drafts[0].model, drafter, "token"
  )
  sampling, room = Sampling(temperature=temperature), study.job.max_length
  run = programs.decoding(decoder, params, sampling, room, study.eos_id)
  key, ids = jax.random.key(args.seed), [row[0].tolist() for row in study.inputs]
  columns = []
  for first, inputs, count in api.padded_batches(ids, args.batch):
    info = run(inputs, row_keys(key, args.batch, first)).statistics
    of = info.acceptance_mass, info.acceptance_positions
    columns.append(np.stack([*of, info.emitted, info.target_calls])[:, :count])
  mass, tried, emitted, calls = np.concatenate(columns, axis=1)
  return {"alpha": ratio(mass, tried), "tokens_per_call": ratio(emitted, calls)}


def _timed(study: Study, kept, temperature: float, address: str, args) -> dict:
  """Returns by K the speed-up over each link, and the bits that were counted."""
  remotes = {speed: Remote(address, speed, args.delay_ms) for speed in args.mbits}
  runs = {"plain": study.plain(study.target, temperature)}
  for k in kept:
    for speed, remote in remotes.items():
      link = Link(remote, args.gamma, k)
      decoder, params = programs.together(study.target, None, link, "token")
      program = study.program(decoder, params, temperature)
      runs[k, speed] = _Counted(program, remote)
  timed = alternate(runs, range(len(study.inputs))[: args.num_timed])
  plain, found = timed.pop("plain"), {}
  for (k, speed), ours in timed.items():
    cell = Measured.timed(Setting(args.gamma, temperature), ours, plain)
    found.setdefault(k, {})[_named(speed)] = cell.speedup
    found[k] |= runs[k, speed].bits_a_token()
  return found


@dataclasses.dataclass
class _Counted:
  """A program that knows what went over its link."""

  program: object
  remote: Remote
  sent: int = 0
  received: int = 0
  tokens: int = 0

  def __call__(self, number):
    before = self.remote.counts()
    decoded = jax.block_until_ready(self.program(number))
    after = self.remote.counts()
    if after["lost"] > before["lost"]:
      raise ValueError("The draft was lost while it was timed. Run it again, alone.")
    self.sent += after["bits_sent"] - before["bits_sent"]
    self.received += after["bits_received"] - before["bits_received"]
    self.tokens += after["tokens"] - before["tokens"]
    return decoded

  def bits_a_token(self) -> dict[str, float]:
    """Returns the bits of the messages over drafted tokens, each way."""
    return {"received": self.received / self.tokens, "sent": self.sent / self.tokens}


COMMAND = Command(__doc__, make, add_flags)
