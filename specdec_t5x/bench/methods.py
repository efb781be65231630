r"""Every way to draft for one target, side by side: tokens a call, and the speed.

  python -m specdec_t5x.bench methods --target DIR --draft small=DIR --draft hydra=DIR \
    --vocabulary FILE --inputs FILE --prefix "translate English to German: " \
    --output DIR

Decodes every input at batch 1 with each draft in each of its shapes, in turn: chains;
the delayed tree of a draft model; the best tree of so many nodes of heads, by the ranks
counted on the same inputs (`bench tree`); trees that rows prune for themselves. Writes
methods.json, methods.csv and methods.md. Leave all cores to it.
"""

import argparse
from collections.abc import Iterator

import jax

from specdec_t5x.analysis.trees import best_tree
from specdec_t5x.bench import flags, jobs, tree
from specdec_t5x.bench.command import Command
from specdec_t5x.bench.environment import environment
from specdec_t5x.bench.measured import Measured, Setting
from specdec_t5x.bench.programs import together
from specdec_t5x.bench.study import COPY, Draft, Study
from specdec_t5x.bench.table import Column, Table, listed
from specdec_t5x.bench.walltime import alternate
from specdec_t5x.core.distributions import Sampling
from specdec_t5x.core.tree import chain, delayed
from specdec_t5x.decoding.drafter import Drafter
from specdec_t5x.drafters.copy import Copy
from specdec_t5x.drafters.draft_model import DEFAULT_GAMMA, DraftModel
from specdec_t5x.drafters.pruned import Pruned
from specdec_t5x.drafters.registry import headed
from specdec_t5x.drafters.tree_draft import TreeDraft
from specdec_t5x.network.functional import HEADS

_RULE = "traversal"  # Of trees; on a chain it is block verification.
_STEM, _BRANCHES = 2, 2
_RANKS = 8
_COLUMNS = (
  Column("temperature", "T"),
  Column("draft", "draft"),
  Column("shape", "shape"),
  Column("nodes", "nodes"),
  Column("parameters", "parameters"),
  Column("tokens_per_call", "tokens a call"),
  Column("speed", "speed-up"),
  Column("in_all", "all inputs"),
  Column("identical", "equal outputs"),
)


def add_flags(parser: argparse.ArgumentParser) -> None:
  """Adds the command's flags."""
  flags.add_pairs(parser)
  parser.set_defaults(num_tokens=None, runs=None)
  flags.add_temperatures(parser)
  add = parser.add_argument
  add("--gamma", type=int, default=DEFAULT_GAMMA, help="of draft models (%(default)s)")
  sizes = [8, 24]
  add("--sizes", type=int, nargs="+", default=sizes, help="of trees (%(default)s)")
  flags.add_output(parser, None)


def make(args: argparse.Namespace) -> Table:
  """Decodes every input with every draft in every shape."""
  study = jobs.from_flags(args)[0].load()
  rows = [row for t in args.temperatures for row in _rows(study, t, args)]
  notes = (
    "Tokens a call of the target [95% interval]; speed-up: plain decoding's seconds a "
    "token over ours, input included, median input [quartiles]; and of all inputs "
    f"together. The rule is '{_RULE}', EXACT; siblings are the likeliest tokens at "
    "temperature 0, else drawn without replacement. A pruned tree's are certain.",
    listed({"inputs": len(study.inputs), "batch": 1, "gamma": args.gamma}),
    listed(environment()),
  )
  title = f"Ways to draft, {study.job.task}"
  return Table("methods", title, _COLUMNS, rows, notes, vars(args))


def _rows(study: Study, temperature: float, args) -> Iterator[dict]:
  """Yields a row for each way to draft, all timed in turn."""
  ways = {
    (draft.name, shape): (draft, drafter)
    for draft in study.drafts
    for shape, drafter in _shapes(study, draft, temperature, args)
  }
  runs = {"plain": study.plain(study.target, temperature)}
  for name, (draft, drafter) in ways.items():
    decoder, params = together(study.target, draft.model, drafter, _RULE)
    runs[name] = study.program(decoder, params, temperature)
  timed = alternate(runs, range(len(study.inputs)))
  for name, (draft, drafter) in ways.items():
    cell = Measured.timed(Setting(1, temperature), timed[name], timed["plain"])
    same = cell.identical
    yield {
      "temperature": f"{temperature:g}",
      "draft": draft.name,
      "shape": name[1],
      "nodes": drafter.tree.size,
      "parameters": _size(draft),
      "tokens_per_call": cell.tokens_per_call,
      "speed": cell.speedup,
      "in_all": cell.speedup_in_all,
      "identical": "sampled" if same is None else f"{same}/{cell.inputs}",
    }


def _shapes(
  study: Study, draft: Draft, temperature: float, args
) -> Iterator[tuple[str, Drafter]]:
  """Yields a draft's shapes, by name."""
  if draft.source == COPY:
    yield "chain", Copy(args.gamma)
    return
  network = draft.model.network
  if not isinstance(network, HEADS):
    yield "chain", DraftModel(network, args.gamma)
    stems = delayed(_STEM, _BRANCHES, max(args.gamma, _STEM + 1))
    yield f"stem {_STEM}, {_BRANCHES} branches", TreeDraft(network, stems, "distinct")
    return
  count = network.config.count
  yield "chain", headed(network, chain(count))
  models, ids = (study.target, draft.model), [row[0].tolist() for row in study.inputs]
  sampling = Sampling(temperature)
  known = sampling, study.eos_id, study.job.max_length
  acceptance = tree.acceptance(models, ids, *known)
  for size in args.sizes:
    yield f"tree of {size}", headed(network, best_tree(acceptance, size))
    if not getattr(network, "reads_path", False):
      pruned = Pruned(size, width=max(size // 2, _RANKS), ranks=_RANKS)
      yield f"pruned to {size}", headed(network, pruned)


def _size(draft: Draft) -> str:
  """Returns how many parameters a draft adds, in millions."""
  leaves = [] if draft.model is None else jax.tree.leaves(draft.model.params)
  return f"{sum(leaf.size for leaf in leaves) / 1e6:.2f}M"


COMMAND = Command(__doc__, make, add_flags)
