"""Compares every way to speculate with other libraries, with the same weights."""

import argparse
import contextlib
import dataclasses
from typing import Any

from benchmarks import comparison, jobs
from benchmarks.command import Command
from benchmarks.environment import PACKAGES, environment
from benchmarks.measure import Way
from benchmarks.study import Study
from benchmarks.table import Table, declared, listed
from lab import trees
from lab.link import process
from lab.peers import PACKAGES as PEERS
from lab.peers import programs
from specdec_t5x.contrib.link.client import Remote
from specdec_t5x.contrib.link.drafter import Link
from specdec_t5x.drafters.pruned import Pruned
from specdec_t5x.network.functional import is_decoder_only
from specdec_t5x.ways import headed

# The columns that need the calls, which peers do not report.
_UNKNOWN = ("alpha", "alpha_by_counts", "tokens_per_call", "drafted")
_RANKS = 8
_WITH_A_DRAFT = (programs.HF_GAMMA, programs.HF_DEFAULT, programs.HF_NO_MASK)


def make(args: argparse.Namespace) -> Table:
  """Decodes every input with every method and with the installed peers."""
  study = jobs.load(args)
  first = study.first_model
  with contextlib.ExitStack() as stack:
    remote = None
    if args.rules and first:
      drafting = process.drafting(first.source, study.job.dtype)
      remote = Remote(stack.enter_context(drafting))

    def more(study, temperature):
      return _more(study, args, temperature, remote)

    table = comparison.make("methods", args, study, more)
    # After losses the rows of the other process are of a draft that was away.
    lost = remote.counts()["lost"] if remote else 0
  notes = list(declared("methods", "lab")["notes"])
  facts = {"drafts lost on the link": lost or None}
  if 0.0 in args.temperatures:
    ran = {row["draft"] for row in table.rows}
    missing = ", ".join(name for name in programs.PROGRAMS if name not in ran)
    facts["missing peers"] = missing or None
  notes.append(listed(facts))
  packages = environment((*PACKAGES, *PEERS))
  return dataclasses.replace(table, notes=(*table.notes, *notes), made=packages)


def _more(study, args, temperature, remote: Remote | None) -> dict[Any, Way]:
  """Returns a draft in another process, trees of heads, and peers at temperature 0."""
  found = {}
  first = study.first_model
  if remote:
    link = Link(remote, args.gamma)
    found |= _way(study, first, temperature, "in another process", link)
  for draft in filter(trees.can_draft, study.drafts):
    for size in args.sizes:
      shape = Pruned(size, width=max(size // 2, _RANKS), ranks=_RANKS)
      drafter = headed(draft.model.network, shape)
      found |= _way(study, draft, temperature, f"pruned to {size}", drafter)
    found |= trees.ways(study, draft, temperature, args.sizes)
  return found if temperature else found | installed(study, args)


def _way(study, draft, temperature, shape: str, drafter: Any) -> dict[Any, Way]:
  # A draft in another process is no network of ours.
  model = None if isinstance(drafter, Link) else draft.model
  decode = study.decode(temperature, model, drafter, "traversal")
  columns = {**comparison.columns_of(draft, decode), "shape": shape}
  return {(draft.name, shape): Way(study.grouped(decode, 1), columns, decode)}


def installed(study: Study, args: argparse.Namespace) -> dict[str, Way]:
  """Returns the installed peers by name; {} without a draft model or an encoder."""
  draft = study.first_model
  if draft is None or is_decoder_only(study.target.network):
    return {}
  decoders = programs.programs(study, draft.model, args.gamma)
  return {
    name: Way(
      lambda group, program=program: program(group.first),
      columns=_columns(name),
    )
    for name, program in decoders.items()
  }


def _columns(name: str) -> dict[str, Any]:
  has_draft = name in _WITH_A_DRAFT
  return {
    **dict.fromkeys(_UNKNOWN),
    "draft": name,
    "shape": "peer",
    "rule": "greedy",
    "guarantee": "LOSSY" if name == programs.CT2["int8"] else "GREEDY_EXACT",
    "parameters": "the draft's" if has_draft else "0.00M",
    "training": "a draft model" if has_draft else "none",
  }


COMMAND = Command("methods", make, package="lab")
