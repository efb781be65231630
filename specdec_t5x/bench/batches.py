r"""Plain decoding, fixed drafts and GAMMA_POLICY='auto' beside each other, by batch.

  python -m specdec_t5x.bench batches --target DIR --draft DIR --vocabulary FILE \
    --inputs FILE --prefix "translate English to German: " --batches 1 4 16 \
    --temperature 1 --top-k 40 --queue 8 --output DIR

Decodes the same inputs with each setting, in turn, in groups of --queue batches: batch
by batch, as `t5x.infer` does, each told what the one before left ('auto'); and as one
call with SLOTS, where a row that ends takes the next input. Writes
batches.json, batches.csv and batches.md. The speeds are medians over the groups
[quartiles], encoder included. Leave all cores to it.
"""

import argparse
import dataclasses
import functools

import jax
import numpy as np

from specdec_t5x import api
from specdec_t5x.bench import flags, inputs, programs
from specdec_t5x.bench.command import Command
from specdec_t5x.bench.environment import environment
from specdec_t5x.bench.table import Column, Table, listed
from specdec_t5x.bench.walltime import Timed, alternate, median_ratio
from specdec_t5x.core.distributions import Sampling
from specdec_t5x.decoding.decoders import SpeculativeDecoder
from specdec_t5x.decoding.state import row_keys
from specdec_t5x.native import library

_COLUMNS = (
  Column("batch", "batch"),
  Column("setting", "setting"),
  Column("milliseconds", "ms a token", 2),
  Column("over_plain", "speed over plain", 2),
  Column("over_best", "over the best fixed", 2),
  Column("tokens_per_call", "tokens a call"),
  Column("drafted", "drafted"),
  Column("identical", "outputs as plain"),
)


def add_flags(parser: argparse.ArgumentParser) -> None:
  """Adds the command's flags."""
  flags.add_one_pair(parser)
  add = parser.add_argument
  add("--batches", type=int, nargs="+", default=[1, 4, 16], help="(%(default)s)")
  add("--gamma", type=int, default=5, help="the longest draft (%(default)s)")
  add("--gammas", type=int, nargs="+", default=[1, 3, 5], help="fixed (%(default)s)")
  add("--queue", type=int, default=1, help="batches a group (%(default)s)")
  add("--temperature", type=float, default=0.0, help="(%(default)s)")
  add("--top-k", type=int, default=0, help="(%(default)s)")
  add("--top-p", type=float, default=0.0, help="(%(default)s)")
  flags.add_output(parser, None)


def make(args: argparse.Namespace) -> Table:
  """Decodes every input with every setting, at each batch."""
  ids, eos_id = inputs.lines(args)()
  models = api.load_model(args.target), api.load_model(args.draft)
  sampling = Sampling(args.temperature, args.top_k, args.top_p)
  rows = []
  for batch in args.batches:
    timed = _timed(args, models, sampling, batch, ids, eos_id)
    rows += _rows(batch, timed)
  return Table(
    "batches",
    f"{len(ids)} inputs, {sampling}",
    _COLUMNS,
    rows,
    (listed(environment() | {"products": library.problem() or "native"}),),
    vars(args),
    {"inputs": len(ids)},
  )


def _timed(args, models, sampling, batch, ids, eos_id) -> dict[str, Timed]:
  """Returns what each setting did with each group of inputs."""
  size = batch * args.queue
  groups = [(first, rows) for first, rows, _ in api.padded_batches(ids, size)]
  runs = {}
  for name, (draft, words) in _settings(args, models[1]).items():
    decoder, params = programs.together(models[0], draft, **words)
    for slots in sorted({0, batch * (args.queue > 1)}):
      of_slots = dataclasses.replace(decoder, slots=slots)
      decode = _decoding(of_slots, params, sampling, args.max_length, eos_id)
      at_once = size if slots else batch
      runs[f"{name}{', SLOTS' if slots else ''}"] = functools.partial(decode, at_once)
  return alternate(runs, groups)


def _decoding(decoder, params, sampling, room, eos_id):
  """Returns what decodes a group of inputs, so many at once."""
  run = jax.jit(
    lambda params, inputs, keys, told: decoder.decode(
      params, inputs, keys, sampling, room, eos_id, **told
    )
  )

  def decode(at_once, group):
    """Returns the group's decodes, of so many inputs each."""
    first, inputs = group
    told, found = {}, []
    if isinstance(decoder, SpeculativeDecoder):
      told = {"known": decoder.nothing_known(at_once)}
    for i in range(0, len(inputs), at_once):
      keys = row_keys(jax.random.key(0), at_once, first + i)
      found.append(run(params, inputs[i : i + at_once], keys, told))
      told = {"known": found[-1].known} if told else {}
    return found

  return decode


def _settings(args, draft):
  fixed = {f"gamma {gamma}": (draft, {"gamma": gamma}) for gamma in args.gammas}
  auto = draft, {"gamma": args.gamma, "policy": "auto"}
  return {"plain": (None, {}), **fixed, "auto": auto}


def _rows(batch, timed):
  """Returns a row a setting."""
  fixed = [name for name in timed if name.startswith("gamma") and "SLOTS" not in name]
  best = min(fixed, key=lambda name: timed[name].seconds.sum())
  counted = {name: _Counts.of(found) for name, found in timed.items()}
  return [
    {
      "batch": batch,
      "setting": name,
      "milliseconds": 1e3 * float(found.seconds.sum() / counted[name].tokens.sum()),
      "over_plain": _speed(name, "plain", timed, counted),
      "over_best": _speed(name, best, timed, counted),
      "tokens_per_call": float(counted[name].tokens.sum() / counted[name].calls),
      "drafted": counted[name].drafted,
      "identical": int(
        (counted[name].outputs == counted["plain"].outputs).all(axis=1).sum()
      ),
    }
    for name, found in timed.items()
  ]


def _speed(name, other, timed, counted):
  """Returns the ratio of tokens a second."""
  each = lambda name: timed[name].seconds / counted[name].tokens
  return median_ratio(each(other), each(name))


@dataclasses.dataclass(frozen=True)
class _Counts:
  """What came of each group."""

  tokens: np.ndarray
  calls: int
  drafted: int
  outputs: np.ndarray

  @classmethod
  def of(cls, found: Timed) -> "_Counts":
    """Returns the counts of what was timed."""
    total = lambda group, name: sum(
      int(getattr(d.statistics, name).sum()) for d in group
    )
    of_all = lambda name: [total(group, name) for group in found.results]
    return cls(
      np.array(of_all("emitted")),
      sum(of_all("target_calls")),
      sum(of_all("drafted")),
      np.concatenate([d.tokens for group in found.results for d in group]),
    )


COMMAND = Command(__doc__, make, add_flags)
