"""Comparisons of ways to decode: the commands of tables.toml, entries with `ways`."""

import argparse
import dataclasses
import itertools
import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax

from benchmarks import jobs
from benchmarks.measure import PLAIN, Row, Run, Setting, Way, Ways, measure
from benchmarks.study import Decode, Draft, Study, pad_inputs
from benchmarks.table import Table, declared, listed, render
from specdec_t5x.core.distributions import Sampling
from specdec_t5x.core.rules import RULES, rule_at
from specdec_t5x.drafters.tree_draft import delayed
from specdec_t5x.native import library
from specdec_t5x.ways import make_drafter, needs_network

_EXACT = "traversal"  # For any tree; on a chain it is block verification.
_COSTS_RUNS = 5
_TRAINING = {
  "draft_model": "a draft model",
  "ngram": "counting",
  "heads": "heads on the target",
}
_ITSELF = Draft("target", "", None, "target", "")  # Every target can draft for itself.
_ABSENT = {"batches": [1], "queue": 1, "temperatures": [0.0], "also": [], "gamma": None}
_ABSENT |= {"top_k": 0, "top_p": 0.0}
_KEY = ("draft", "shape", "rule", "nodes", "siblings")


def make(
  name: str,
  args: argparse.Namespace,
  study: Study | None = None,
  more: Callable[[Study, float], Ways] | None = None,
  package: str = "benchmarks",
) -> Table:
  """Decodes every input by every way of the comparison `name` of a tables.toml.

  `more` returns further ways at a temperature, timed in turn with the comparison's. The
  pair and the inputs are those of the flags without a study.
  """
  entry = declared(name, package)
  flags = {**_ABSENT, **vars(args)}
  study, domains = _with_domains(study or jobs.load(args), flags)
  if not _pairs(study, entry, flags):
    kinds = sorted({kind for way in entry["ways"] for kind in way["of"]})
    given = [f"{draft.name}: {draft.drafter}" for draft in study.drafts]
    raise ValueError(
      f"--draft: expected one of the kinds {kinds}, got {given}. Give another draft."
    )

  def ways(temperature, batch):
    others = more(study, temperature) if more else {}
    return _ways(study, entry, flags, temperature, batch) | others

  run = Run(
    ways,
    lambda batch: study.groups(batch * flags["queue"]),
    flags["temperatures"],
    flags["batches"],
    domains,
    Setting(0, 0.0, timed=not entry.get("counted")),
  )
  measured = list(measure(run))
  # A shape has the same cost under all rules and temperatures.
  decodes = {row.key[:2]: row.way.decode for row in measured if row.way.decode}
  costs = study.costs(decodes, _COSTS_RUNS) if entry.get("costs") else {}
  rows, fastest = _rows(measured, study.job.task)
  for row in rows:
    cost = costs.get((row.get("draft"), row["shape"]))
    row["c"] = cost and cost.c
  if not entry.get("plain"):
    rows = [row for row in rows if row["shape"] != PLAIN]
  if "pivot" in entry:
    rows = _pivoted(rows, entry["pivot"])
  inputs = {name: domains.count(name) for name in dict.fromkeys(domains)}
  facts = {"inputs": inputs or len(study.inputs), "gamma": flags["gamma"]}
  words = {
    "task": study.job.task,
    "draft": study.drafts[0].name,
    "inputs": len(study.inputs),
    "sampling": Sampling(flags["temperatures"][0], flags["top_k"], flags["top_p"]),
    "products": library.problem() or "native",
    "fastest": fastest,
  }
  notes = [listed(facts)]
  return render(name, rows, {**flags, **words}, notes=notes, package=package)


def _ways(study, entry, flags, temperature, batch) -> dict[Any, Way]:
  """Returns the ways by the columns `_KEY`, and plain decoding if ways are timed."""
  sampling = Sampling(temperature, flags["top_k"], flags["top_p"])
  at = "sampled" if temperature else "greedy"
  described = {}
  if not entry.get("counted"):
    described[PLAIN] = study.decode(sampling), {"shape": PLAIN}
  for draft, way in _pairs(study, entry, flags):
    values = flags[way["each"]] if "each" in way else [None]
    rules = way.get("rules", [_EXACT]) if way.get("at", at) == at else []
    for value, rule in itertools.product(values, rules):
      filled = _filled(way, {**flags, way.get("each"): value})
      decode, columns = _described(study, draft, filled, rule, sampling)
      described[tuple(columns[name] for name in _KEY)] = decode, columns
  ways = {}
  rows = batch * flags["queue"]
  for key, (decode, columns) in described.items():
    timed = None if key == PLAIN else decode
    ways[key] = Way(study.grouped(decode, batch), columns, timed)
    if entry.get("slots") and rows > batch:
      decoder = dataclasses.replace(decode.decoder, slots=batch)
      program = study.grouped(dataclasses.replace(decode, decoder=decoder), rows)
      shape = f"{columns['shape']}, read ahead"
      ways[key, rows] = Way(program, {**columns, "shape": shape, "reference": False})
  return ways


def _described(study, draft, way, rule, sampling) -> tuple[Decode, dict[str, Any]]:
  """Returns the decode of a way whose flags are filled in, and the columns."""
  knobs = {"name": rule} if isinstance(rule, str) else dict(rule)
  rule = dataclasses.replace(RULES[knobs.pop("name")], **knobs)
  model = draft.model
  words = {name: way[name] for name in ("gamma", "policy") if name in way}
  if "way" in way:
    model = model if needs_network(way["way"]) else None
    drafter = _drafter(way, model and model.network)
  else:
    drafter = draft.drafter
  decode = study.decode(sampling, model, drafter, rule, **words)
  columns = {
    **columns_of(draft, decode),
    "shape": way["shape"],
    "siblings": way.get("knobs", {}).get("siblings"),
    "reference": way.get("reference", False),
    **way.get("columns", {}),
  }
  return decode, columns


def columns_of(draft: Draft, decode: Decode) -> dict[str, Any]:
  """Returns columns of a way to decode: the rule, the size of the draft, its needs."""
  # At T = 0 exact rules become greedy.
  judge, _ = rule_at(decode.decoder.rule, decode.sampling)
  drafter = decode.decoder.drafter
  params = draft.model.params if drafter.networks else None
  size = sum(leaf.size for leaf in jax.tree.leaves(params))
  return {
    "draft": draft.name,
    "rule": type(judge).__name__.lower(),
    "guarantee": judge.guarantee.name,
    "nodes": drafter.tree.size,
    "depth": drafter.tree.depth,
    "parameters": f"{size / 1e6:.2f}M",
    "training": _TRAINING.get(draft.drafter, "none"),
  }


def _pairs(study, entry, flags) -> list[tuple[Draft, Mapping]]:
  """Returns each draft with each way of the draft's kinds."""
  pairs = []
  for draft in (*study.drafts, _ITSELF):
    kinds = {draft.drafter}
    kinds |= {"first"} if draft is study.first_model else set()
    kinds |= {"any"} if draft is study.drafts[0] else set()
    for way in entry["ways"]:
      if flags.get(way.get("when"), True) and not kinds.isdisjoint(way["of"]):
        pairs.append((draft, way))
  return pairs


def _filled(value: Any, flags: Mapping[str, Any]) -> Any:
  """Returns a description with the values of flags."""
  if isinstance(value, Mapping):
    return {key: _filled(item, flags) for key, item in value.items()}
  if isinstance(value, list):
    return [_filled(item, flags) for item in value]
  if isinstance(value, str) and value.startswith("$"):
    return flags[value[1:]]
  return value.format_map(flags) if isinstance(value, str) else value


def _drafter(way: Mapping, network: Any) -> Any:
  """Returns the drafter of a way's name and knobs."""
  knobs = dict(way.get("knobs", {}))
  for name, value in knobs.items():
    if isinstance(value, Mapping):
      knobs[name] = _drafter(value, network)
    elif name == "tree":
      stem, branches, depth = value
      knobs[name] = delayed(stem, branches, max(depth, stem + 1))
  return make_drafter(way["way"], network, **knobs)


def _with_domains(study: Study, flags: Mapping) -> tuple[Study, list[str]]:
  """Returns the study with the inputs of --also, and the domain of each input."""
  if not flags["also"]:
    return study, []
  tokens = study.ids
  labels = [study.job.task] * len(tokens)
  for value in flags["also"]:
    name, equals, path = value.partition("=")
    if not equals:
      raise ValueError(f"--also: expected NAME=FILE, got {value!r}.")
    texts = jobs.lines(path, flags["num_inputs"], flags["prefix"])
    ids, _ = jobs.encoded(study.job.vocabulary, texts, flags["prompts"])
    tokens = tokens + ids
    labels += [name] * len(ids)
  return dataclasses.replace(study, inputs=pad_inputs(tokens)), labels


def _rows(measured: Sequence[Row], task: str) -> tuple[list[dict[str, Any]], str]:
  """Returns the rows of a table, and the fastest reference of each batch in words."""
  rows = []
  fastest = []
  in_turn = operator.attrgetter("cell.setting.temperature", "batch", "domain")
  for (_, batch, domain), group in itertools.groupby(measured, in_turn):
    group = list(group)
    known = [row for row in group if row.way.columns.get("reference")]
    best = min(known, key=lambda row: row.cell.pace, default=None)
    fastest += [f"{best.way.columns['shape']} at batch {batch}"] if best else []
    for row in group:
      values = {**row.values, "domain": domain or task}
      values |= {"setting": values["shape"], "equal": values.get("identical")}
      if best:
        columns = best.cell.columns
        over = row.cell.over(columns["seconds"], columns["emitted"])
        values["over_best"] = over
      rows.append(values)
  return rows, ", ".join(fastest)


def _pivoted(rows: Sequence[Mapping[str, Any]], pivot: str) -> list[dict[str, Any]]:
  """Returns rows with tokens per call in a column for each value of `pivot`."""
  by = ("temperature", "batch", "draft", "shape", "nodes", "depth", "siblings")
  pivoted = {}
  for row in rows:
    names = {name: row[name] for name in by}
    found = pivoted.setdefault(tuple(names.values()), names)
    found[row[pivot]] = row["tokens_per_call"]
  return list(pivoted.values())
