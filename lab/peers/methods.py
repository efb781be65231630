"""Compares every way to speculate with other libraries, with the same weights."""

import argparse
import dataclasses
from typing import Any

from benchmarks import comparison
from benchmarks.command import Command
from benchmarks.environment import PACKAGES, environment
from benchmarks.measure import Way
from benchmarks.study import Study
from benchmarks.table import Table, declared, listed
from lab import trees
from lab.peers import PACKAGES as PEERS
from lab.peers import programs
from specdec_t5x.network.functional import is_decoder_only

# Peers do not report their calls.
_SHOWN = ("milliseconds", "speed", "in_all", "identical")
_WITH_A_DRAFT = (programs.HF_GAMMA, programs.HF_DEFAULT, programs.HF_NO_MASK)


def make(args: argparse.Namespace) -> Table:
  """Decodes every input with every method and with the installed peers."""
  table = comparison.make("methods", args, more=more)
  notes = list(declared("methods", "lab")["notes"])
  if 0.0 in args.temperatures:
    ran = {row["draft"] for row in table.rows}
    missing = ", ".join(name for name in programs.PROGRAMS if name not in ran)
    notes.append(listed({"missing peers": missing or None}))
  packages = environment((*PACKAGES, *PEERS))
  return dataclasses.replace(table, notes=(*table.notes, *notes), made=packages)


def more(study: Study, args: argparse.Namespace, temperature: float) -> dict[str, Way]:
  """Returns the best trees of heads and, at temperature 0, the installed peers."""
  found = {}
  for draft in filter(trees.can_draft, study.drafts):
    found |= trees.ways(study, draft, temperature, args.sizes)
  return found if temperature else found | installed(study, args)


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
      shown=_SHOWN,
    )
    for name, program in decoders.items()
  }


def _columns(name: str) -> dict[str, Any]:
  has_draft = name in _WITH_A_DRAFT
  return {
    "draft": name,
    "shape": "peer",
    "rule": "greedy",
    "guarantee": "LOSSY" if name == programs.CT2["int8"] else "GREEDY_EXACT",
    "parameters": "the draft's" if has_draft else "0.00M",
    "training": "a draft model" if has_draft else "none",
  }


COMMAND = Command("methods", make, package="lab")
