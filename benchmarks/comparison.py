"""Comparisons of ways to decode: the commands of tables.toml, entries with `ways`."""

import argparse
import contextlib
import dataclasses
import functools
import itertools
import operator
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Int

from benchmarks import jobs
from benchmarks.command import Command, at_least
from benchmarks.measure import PLAIN, Row, Run, Setting, Way, Ways, measure
from benchmarks.oracle import oracle_start, random_model
from benchmarks.sizes import VOCAB_SIZE
from benchmarks.study import COPY, Decode, Draft, Group, Job, Study, pad_inputs
from benchmarks.table import Table, declared, listed, render
from benchmarks.timed import iterated
from specdec_t5x.build import headed
from specdec_t5x.contrib.link import process
from specdec_t5x.contrib.link.client import Remote
from specdec_t5x.contrib.pruned import Pruned
from specdec_t5x.core.distributions import Sampling
from specdec_t5x.core.greedy import rule_at
from specdec_t5x.core.rules import get_rule
from specdec_t5x.core.tree import chain, delayed
from specdec_t5x.data import text_files
from specdec_t5x.native import library
from specdec_t5x.vocabularies.opening import open_vocabulary
from specdec_t5x.ways import WAYS

_EXACT = "traversal"  # For any tree; on a chain it is block verification.
_RANKS = 8
_COSTS_RUNS = 5
_TRAINING = {
  "draft_model": "a draft model",
  "ngram": "counting",
  "heads": "heads on the target",
}
_ITSELF = Draft("target", "", None, "target", "")  # Every target can draft for itself.
_ABSENT = {"batches": [1], "queue": 1, "temperatures": [0.0], "also": [], "gamma": None}
_KEY = ("draft", "shape", "rule", "nodes", "siblings")

# (study, flags, temperature) -> further ways.
MoreFn = Callable[[Study, argparse.Namespace, float], Ways]


def command(name: str) -> Command:
  """Returns the command of a comparison."""
  return Command(name, functools.partial(make, name))


def make(name: str, args: argparse.Namespace, more: MoreFn | None = None) -> Table:
  """Decodes every input by every way of a comparison.

  Args:
    name: the entry of tables.toml.
    args: the flags.
    more: returns ways that decode in turn with the ways.
  """
  entry = declared(name)
  flags = {**_ABSENT, **vars(args)}
  at_least(argparse.Namespace(**flags), batches=1, queue=1, gamma=1, sizes=1)
  study = _texts(args) if entry.get("source") == "texts" else jobs.load(args)
  study, domains = _with_domains(study, flags)
  with contextlib.ExitStack() as stack:
    ways = _Ways(study, entry, flags, stack)

    def in_turn(temperature, batch):
      others = more(study, args, temperature) if more else {}
      return ways(temperature, batch) | others

    run = Run(
      in_turn,
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
    lost = flags["remote"].counts()["lost"] if "remote" in flags else 0
  rows, fastest = _rows(measured, ways.references, study.job.task)
  for row in rows:
    cost = costs.get((row.get("draft"), row["shape"]))
    row["c"] = cost and cost.c
  if not entry.get("plain"):
    rows = [row for row in rows if row["shape"] != PLAIN]
  if "pivot" in entry:
    rows = _pivoted(rows, entry["pivot"])
  inputs = {name: domains.count(name) for name in dict.fromkeys(domains)}
  facts = {
    "inputs": inputs or len(study.inputs),
    "gamma": flags["gamma"],
    # After losses the rows of the other process are of a draft that was away.
    "drafts lost on the link": lost or None,
  }
  words = {
    "task": study.job.task,
    "draft": study.drafts[0].name,
    "inputs": len(study.inputs),
    "sampling": _sampling(flags, flags["temperatures"][0]),
    "products": library.problem() or "native",
    "fastest": fastest,
  }
  return render(name, rows, {**flags, **words}, notes=[listed(facts)])


class _Ways:
  """The ways of a comparison for a temperature and a batch size.

  Attributes:
    references: the keys of the ways that `over_best` compares with.
  """

  def __init__(self, study, entry, flags, stack: contextlib.ExitStack):
    self.references: set[Any] = set()
    self._study = study
    self._entry = entry
    self._flags = flags
    self._pairs = [
      (draft, way)
      for draft in (*study.drafts, _ITSELF)
      for way in entry["ways"]
      if flags.get(way.get("when"), True) and _fits(study, draft, way)
    ]
    if not self._pairs:
      kinds = sorted({kind for way in entry["ways"] for kind in way["of"]})
      raise ValueError(
        f"--draft: expected one of the kinds {kinds}, got "
        f"{[f'{draft.name}: {draft.drafter}' for draft in study.drafts]}. Give another "
        "draft."
      )
    if any(way.get("way") == "link" for _, way in self._pairs):
      drafting = process.drafting(study.first_model.source, study.job.dtype)
      flags["remote"] = Remote(stack.enter_context(drafting))

  def __call__(self, temperature: float, batch: int) -> dict[Any, Way]:
    """Returns the ways by the columns `_KEY`, and plain decoding if ways are timed."""
    sampling = _sampling(self._flags, temperature)
    at = "sampled" if temperature else "greedy"
    ways = {}
    if not self._entry.get("counted"):
      self._add(ways, PLAIN, self._study.decode(sampling), batch, {"shape": PLAIN})
    for draft, way in self._pairs:
      flags = self._flags
      values = flags[way["each"]] if "each" in way else [None]
      rules = way.get("rules", [_EXACT]) if way.get("at", at) == at else []
      for value, rule in itertools.product(values, rules):
        filled = _filled(way, {**flags, way.get("each"): value})
        decode, columns = self._described(draft, filled, rule, sampling)
        key = tuple(columns[name] for name in _KEY)
        self.references |= {key} if way.get("reference") else set()
        self._add(ways, key, decode, batch, columns)
    return ways

  def _described(self, draft, way, rule, sampling) -> tuple[Decode, dict[str, Any]]:
    """Returns the decode of a way whose flags are filled in, and the columns."""
    knobs = {"name": rule} if isinstance(rule, str) else dict(rule)
    rule = get_rule(knobs.pop("name"), **knobs)
    model = draft.model
    words = {name: way[name] for name in ("gamma", "policy") if name in way}
    if "heads" in way:
      size = way.get("size", model.network.config.count)
      shape = chain(size)
      if way["heads"] == "pruned":
        shape = Pruned(size, width=max(size // 2, _RANKS), ranks=_RANKS)
      drafter = headed(model.network, shape)
    elif "way" in way:
      model = model if WAYS[way["way"]].needs_network else None
      drafter = _drafter(way, model and model.network)
    else:
      drafter = draft.drafter
    decode = self._study.decode(sampling, model, drafter, rule, **words)
    siblings = way.get("knobs", {}).get("siblings")
    columns = {"shape": way["shape"], "siblings": siblings, **way.get("columns", {})}
    return decode, {**columns_of(draft, decode), **columns}

  def _add(self, ways, key, decode, batch, columns) -> None:
    """Adds a way, and the same way with SLOTS."""
    drafts = None if key == PLAIN else decode
    ways[key] = Way(self._study.grouped(decode, batch), columns, drafts)
    rows = batch * self._flags["queue"]
    if self._entry.get("slots") and rows > batch:
      decoder = dataclasses.replace(decode.decoder, slots=batch)
      program = self._study.grouped(dataclasses.replace(decode, decoder=decoder), rows)
      ways[key, rows] = Way(program, {**columns, "shape": f"{columns['shape']}, SLOTS"})


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


def _fits(study: Study, draft: Draft, way: Mapping) -> bool:
  """Returns whether a way is of a draft."""
  kinds = {draft.drafter}
  kinds |= {"first"} if draft is study.first_model else set()
  kinds |= {"any"} if draft is study.drafts[0] else set()
  if draft.drafter == "heads" and draft.model.network.config.kind != "eagle":
    kinds.add("trees")
  return not kinds.isdisjoint(way["of"])


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
  return WAYS[way["way"]].make({"draft": network}, **knobs)


def _sampling(flags: Mapping[str, Any], temperature: float) -> Sampling:
  return Sampling(temperature, flags.get("top_k", 0), flags.get("top_p", 0.0))


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


def _rows(
  measured: Sequence[Row], references: set[Any], task: str
) -> tuple[list[dict[str, Any]], str]:
  """Returns the rows of a table, and the fastest reference of each batch in words."""
  rows = []
  fastest = []
  in_turn = operator.attrgetter("cell.setting.temperature", "batch", "domain")
  for (_, batch, domain), group in itertools.groupby(measured, in_turn):
    group = list(group)
    known = [row for row in group if row.key in references]
    best = min(known, key=lambda row: row.cell.pace, default=None)
    fastest += [f"{best.way.columns['shape']} at batch {batch}"] if best else []
    for row in group:
      values = {**row.values, "domain": domain or task}
      values |= {"setting": values["shape"], "equal": values.get("identical")}
      values |= {"over_best": row.cell.over(best.cell)} if best else {}
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


# ---- Given outputs ----


@dataclasses.dataclass(frozen=True)
class Replay(Study):
  """A target with random weights, whose argmax is bent to given outputs.

  Attributes:
    outputs: the output of each input, with EOS and padding.
  """

  outputs: tuple[Int[Array, "1 T"], ...] = ()

  def groups(self, rows: int) -> list[Group]:
    """Returns a group per input."""
    return [Group(i, text, rows) for i, text in enumerate(self.inputs)]

  def grouped(self, decode: Decode, rows: int) -> Callable[[Group], Any]:
    """Returns a program that decodes the output of a group's input."""
    run = iterated(oracle_start(decode))
    most = jnp.int32(decode.max_length)
    return lambda group: run(
      most, {"target": self.outputs[group.first]}, *decode.given(group.inputs)
    )


def _texts(args: argparse.Namespace) -> Replay:
  """Returns the texts of the flags with a random target."""
  vocabulary = open_vocabulary(args.vocabulary)
  if vocabulary.vocab_size > VOCAB_SIZE:
    raise ValueError(
      f"--vocabulary {args.vocabulary} has {vocabulary.vocab_size} pieces, more than "
      f"the network's {VOCAB_SIZE}. Use T5's vocabulary, or a smaller vocabulary."
    )

  def padded(text, length):
    """Returns tokens cut to length - 1, with EOS and padding."""
    ended = [*vocabulary.encode(text)[: length - 1], vocabulary.eos_id]
    return jnp.array([ended + [0] * (length - len(ended))], jnp.int32)

  fields = [args.source] if args.lead else [args.source, args.output_field]
  inputs = []
  outputs = []
  for row in text_files.read_fields(args.texts, fields)[: args.num_texts]:
    output = row.get(args.output_field)
    if args.lead:
      sentences = re.split(r"(?<=[.!?]) +", row[args.source])
      output = " ".join(sentences[: args.lead])
    inputs.append(padded(args.prefix + row[args.source], args.input_length))
    outputs.append(padded(output, args.max_length))
  eos_id = vocabulary.eos_id
  job = Job(args.texts, args.size, {COPY: COPY}, lambda: ([], eos_id), args.max_length)
  drafts = (Draft(COPY, COPY, None, COPY, ""),)
  model = random_model(args.size)
  return Replay(job, model, drafts, tuple(inputs), eos_id, tuple(outputs))
