r"""Compares every way to speculate with other libraries, with the same weights.

  python -m lab methods --output DIR          # the demo pair, all drafts
  python -m lab methods --target DIR --draft small=DIR --vocabulary FILE --inputs FILE \
    --prefix "translate English to German: " --output DIR

Takes the flags of `python -m specdec_t5x.bench methods` and decodes with the same
methods. At temperature 0 the installed peers decode in turn with our methods: Hugging
Face and CTranslate2 (the extra `peers`), and upstream T5X (in place of t5x_runtime,
requirements/t5x-upstream.txt). Leave every core to the measurement: torch's threads
wait for each other, so a busy core slows torch down far more than XLA.
"""

import argparse
import dataclasses
from typing import Any

from lab.peers import PACKAGES as PEERS
from lab.peers import programs
from specdec_t5x.bench import methods
from specdec_t5x.bench.run import Way
from specdec_t5x.bench.study import Study
from specdec_t5x.bench.table import Table, declared, listed
from specdec_t5x.environment import PACKAGES, environment
from specdec_t5x.network.functional import is_decoder_only

# Peers do not report their calls.
_SHOWN = ("milliseconds", "speed", "in_all", "identical")
_WITH_A_DRAFT = (programs.HF_GAMMA, programs.HF_DEFAULT, programs.HF_NO_MASK)


def make(args: argparse.Namespace) -> Table:
  """Decodes every input with every method and with the installed peers."""
  table = methods.make(args, installed)
  notes = list(declared("methods", "lab")["notes"])
  if 0.0 in args.temperatures:
    ran = {row["draft"] for row in table.rows}
    missing = ", ".join(name for name in programs.PROGRAMS if name not in ran)
    notes.append(listed({"missing peers": missing or None}))
  packages = environment((*PACKAGES, *PEERS))
  return dataclasses.replace(table, notes=(*table.notes, *notes), made=packages)


def installed(study: Study, args: argparse.Namespace) -> dict[str, Way]:
  """Returns the installed peers by name; {} without a draft model or an encoder."""
  draft = study.first_model
  if draft is None or is_decoder_only(study.target.network):
    return {}
  decoders = programs.programs(study, draft.model, args.gamma)
  return {
    name: Way(program=program, columns=_columns(name), shown=_SHOWN)
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


COMMAND = dataclasses.replace(methods.COMMAND, about=__doc__, make=make)
