"""Compiled rules and the compiled loop, driven along every path of the oracle."""

import dataclasses
import functools
import math
from typing import Any, NamedTuple

import flax.struct
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from specdec_t5x.contrib.heads import HeadDraft
from specdec_t5x.contrib.link.drafter import Link
from specdec_t5x.contrib.other_vocabulary import OtherVocabulary
from specdec_t5x.contrib.sparse import SparseDraft
from specdec_t5x.core.distributions import LEVELS, Sampling
from specdec_t5x.core.rules import RULES
from specdec_t5x.core.tree import Tree
from specdec_t5x.core.types import Proposal
from specdec_t5x.decoding.generate import generate
from specdec_t5x.decoding.state import DecodeState, row_keys
from specdec_t5x.decoding.step import decisions
from specdec_t5x.drafters.draft_model import DraftModel
from specdec_t5x.drafters.tree_draft import TreeDraft
from tests.exactness import enumeration, lengths
from tests.exactness.enumeration import Setting, explore, iterate, target_probs
from tests.exactness.oracles import JUDGES
from tests.exactness.planting import jit
from tests.hash_model import (
  FIXED,
  HashHeads,
  HashModel,
  OtherHash,
  SparseHash,
  speculation,
)

# Float32 may misplace so much probability at an edge of a cell; more would show.
MARGIN = 1e-6
LARGEST = 1 - 2.0**-24
PLACES = 3  # Next to the lower edge of a cell, in its middle, next to its upper edge.


def uniforms_along(paths, shape):
  """Returns the uniforms that lead along each path, at each place of their cells.

  Args:
    paths: whose decisions are named by places in `shape`.
    shape: of the decisions.

  Returns:
    [PLACES, N, *shape, levels]; uniforms that are not read are 0.5.
  """
  at, cells = [], []
  for row, path in enumerate(paths):
    for decision, levels in path.cells.items():
      at += [(row, *decision, -level) for level in range(len(levels), 0, -1)]
      cells += levels
  (low, high, reached), at = np.array(cells).T, np.array(at).T
  margin, middle = MARGIN / reached, np.minimum((low + high) / 2, LARGEST)
  is_wide = high - low >= 2 * margin
  edges = [np.where(is_wide, edge, middle) for edge in (low + margin, high - margin)]
  shape = PLACES, len(paths), *shape, -at[-1].min()
  uniforms = np.full(shape, 0.5, np.float32)
  uniforms[:, *at] = [edges[0], middle, edges[1]]
  return uniforms


def difference(distribution, other):
  """The largest difference between two distributions of outputs."""
  return max(
    abs(distribution.get(o, 0.0) - other.get(o, 0.0)) for o in {*distribution, *other}
  )


def assert_all_are(distributions, expected):
  """Each of these distributions is the expected one, and lacks no mass."""
  for distribution in distributions:
    assert sum(distribution.values()) == pytest.approx(1, abs=1e-9)
    assert difference(distribution, expected) < 1e-6


# ---- One rule. ----


def rule_probs(rule, setting):
  """The probs of outputs at each place of the cells, verdicts by the compiled rule.

  Iterations, drafts and what probability each cell of uniforms has come from the
  oracle; what happens in it from `rule.verify`.
  """
  paths = [
    (prefix, path)
    for prefix in enumeration.prefixes(setting)
    for path in explore(lambda world, p=prefix: iterate(world, setting, p))
  ]
  inputs = [_rule_inputs(setting, *path) for path in paths]
  count = len(setting.tree)
  drawn = uniforms_along([path for _, path in paths], (2 * count + 1,))[:, :, count:]
  columns = map(np.stack, zip(*inputs, strict=True))
  columns = [np.concatenate([column] * PLACES) for column in columns]
  columns.append(drawn.reshape(-1, *drawn.shape[2:]))
  # Rows are repeated up to a power of four: few shapes, so few programs to compile.
  rows = len(columns[0])
  size = 4 ** math.ceil(math.log(rows, 4))
  target_probs, *draft, uniforms = (
    jnp.asarray(np.resize(column, (size, *column.shape[1:]))) for column in columns
  )
  proposal = Proposal(*draft, Tree(setting.tree))
  verdict = jit(rule.verify)(target_probs, proposal, uniforms)
  columns = [np.asarray(column) for column in (verdict.last, verdict.next_token)]
  verdicts = np.split(np.stack(columns, axis=1)[:rows], PLACES)
  return [_probs_of_verdicts(setting, paths, each.tolist()) for each in verdicts]


def _probs_of_verdicts(setting, paths, verdicts):
  after = {}
  for (last, next_token), (prefix, path) in zip(verdicts, paths, strict=True):
    # A node that does not count must not be accepted: its mass is missed.
    drafted = path.result[0].paths.get(last)
    if drafted is not None:
      output = enumeration.cut((*prefix, *drafted, next_token), setting)
      after.setdefault(prefix, []).append((output, path.probability))
  # Where the oracle never ends an iteration the mass is lost, and missed by the caller.
  return enumeration.absorb(setting, lambda prefix: after.get(prefix, []))


def _rule_inputs(setting, prefix, path):
  """Returns target_probs and the proposal's fields of one path, as one row."""
  draft, count = path.result[0], len(setting.tree)
  size = setting.target(()).size
  # What does not count is garbage, and must not matter.
  tokens, is_valid = np.full(count, 2), np.zeros(count, bool)
  draft_probs = np.full((count, size), 0.7, np.float32)
  target_probs = np.full((count + 1, size), 0.7, np.float32)
  for node, drafted in draft.paths.items():
    target_probs[node] = setting.target((*prefix, *drafted))
  for node, distribution in draft.distributions.items():
    tokens[node - 1], draft_probs[node - 1] = draft.paths[node][-1], distribution
    is_valid[node - 1] = True
  return target_probs, tokens, draft_probs, is_valid


# ---- The whole loop. ----


@flax.struct.dataclass
class Driven(DecodeState):
  """A state whose uniforms are prescribed, [B, iterations, count, levels]."""

  prescribed: jax.Array = None

  def uniforms(self, count):
    rows = jnp.arange(self.iteration.size)
    uniforms = self.prescribed[rows, self.iteration, :count]
    unread = (0, 0), (0, 0), (LEVELS - uniforms.shape[-1], 0)
    return jnp.pad(uniforms, unread, constant_values=0.5)


class Loop(NamedTuple):
  """What the compiled loop decodes, and how; settings are such tuples."""

  target: HashModel
  draft: Any
  rule: str
  tree: Tree
  room: int
  siblings: str = "independent"
  policy: Any = None
  eos_id: Any = 1


@functools.cache
def loop_paths(loop, sampling):
  """The oracle's setting, and every path of whole decodes of two table models."""
  target, draft, name, tree, max_length, siblings, policy, eos_id = Loop(*loop)
  # Where tokens are certain, the likeliest are those at temperature 1.
  certain = sampling.greedy or siblings == "likeliest"
  p = target.distribution(sampling)
  q = draft.distribution(Sampling() if certain else sampling)
  siblings = "likeliest" if certain else siblings
  judge = JUDGES["greedy" if sampling.greedy else name]
  setting = Setting(p, q, judge, tree.parents, max_length, eos_id, siblings)
  if isinstance(draft, HashHeads):
    # There is nothing to draft from before the target's first call.
    known = {"given": lambda *known: known, "stops": lambda prefix, _: not prefix}
    setting = dataclasses.replace(setting, **known)
  if policy is None:
    return setting, list(explore(lambda world: enumeration.decode(world, setting)))
  resumes = not isinstance(draft, HashHeads)

  def decode(world):
    return lengths.decode(world, setting, policy, resumes)

  return setting, list(explore(decode))


def assert_the_loop_is_exact(loop, sampling):
  """Whole outputs have the target's distribution, what stands after an end included."""
  parts = Loop(*loop)
  setting, paths = loop_paths(loop, sampling)
  drafter = drafter_of(parts.draft, parts.tree, parts.siblings)
  found = driven_probs(
    paths,
    parts.target,
    drafter,
    sampling,
    parts.rule,
    parts.room,
    parts.policy or FIXED,
    eos_id=parts.eos_id,
  )
  assert_all_are(found, outputs_of(setting))


def driven_probs(
  paths, target, drafter, sampling, name, max_length, policy=FIXED, *, eos_id=1
):
  """The probs of outputs at each place of the cells, by the compiled loop."""
  setting = target, drafter, sampling, name, policy
  run = jit(lambda uniforms: drive(uniforms, *setting, eos_id=eos_id))
  if policy.may_rest:
    # When a batch rests depends on all its rows, so each path is a batch of its own.
    alone = run
    run = jit(jax.vmap(lambda uniforms: alone(uniforms[None])[0]))
  return probs_along(paths, run, decisions(drafter), max_length)


def probs_along(paths, run, count, max_length, rows=()):
  """The probs of outputs at each place of the cells, by what decodes with uniforms.

  Args:
    paths: of whole decodes, by the oracle.
    run: from uniforms [B, *rows, iterations, count, levels] to outputs [B, *rows, T].
    count: decisions an iteration.
    max_length: room for the output.
    rows: how many there are in a path, where it is of several.
  """
  prescribed = uniforms_along(paths, (*rows, max_length, count))
  tokens = run(jnp.asarray(prescribed.reshape(-1, *prescribed.shape[2:])))
  return probs_of(paths, np.asarray(tokens))


def probs_of(paths, tokens):
  """The probs of the outputs [PLACES * N, ...] that paths led to, at each place."""
  distributions = []
  for outputs in np.split(tokens, PLACES):
    distribution = {}
    for output, path in zip(map(_frozen, outputs.tolist()), paths, strict=True):
      distribution[output] = distribution.get(output, 0.0) + path.probability
    distributions.append(distribution)
  return distributions


def _frozen(nested):
  return tuple(map(_frozen, nested)) if isinstance(nested, list) else nested


def outputs_of(setting):
  """The target's distribution of outputs, padded with zeros as the loop's are."""
  length = setting.max_length
  return {
    output + (0,) * (length - len(output)): mass
    for output, mass in target_probs(setting).items()
  }


def drafter_of(draft, tree, siblings="independent"):
  """The library's drafter of such drafts."""
  if isinstance(draft, HashHeads):
    return HeadDraft(draft, tree, siblings)
  if isinstance(draft, SparseHash):
    cut = draft.truncation.top_k, draft.truncation.top_p
    if draft.remote:
      return Link(draft.remote, tree.size, *cut)
    return SparseDraft(draft.model, tree.size, *cut)
  if isinstance(draft, OtherHash):
    return OtherVocabulary(draft.model, tree.size, tokens=draft.tokens)
  if tree.is_chain:
    return DraftModel(draft, tree.size)
  return TreeDraft(draft, tree, siblings)


def drive(prescribed, target, drafter, sampling, name, policy=FIXED, *, eos_id=1):
  """Outputs of the loop under prescribed uniforms [B, iterations, count, levels]."""
  rows, max_length, *_ = prescribed.shape
  keys = row_keys(jax.random.key(0), rows)
  spec, state = speculation(
    target,
    drafter,
    RULES[name],
    sampling,
    keys,
    max_length,
    eos_id,
    policy=policy,
  )
  return generate(spec, Driven(**vars(state), prescribed=prescribed)).tokens


# ---- Decoders of networks. ----


def every_output(size, length):
  """Every output of so many tokens, [N, T]."""
  return np.array(list(np.ndindex(*[size] * length)))


def logits_by_output(read, size, room):
  """Logits [V] after each output that leaves room, by what reads all of them at once.

  Args:
    read: from tokens [N, room], the first of which start, to logits [N, room, V].
    size: of the vocabulary.
    room: for the output.
  """
  outputs = every_output(size, room - 1)
  found = np.asarray(read(jnp.pad(outputs, ((0, 0), (1, 0)))))
  return {
    tuple(row[:n]): logits[n]
    for row, logits in zip(outputs.tolist(), found, strict=True)
    for n in range(room)
  }


def assert_the_decoder_is_exact(decoder, params, inputs, sampling, settings, paths):
  """A decoder that is driven along paths has the target's distributions of outputs.

  Args:
    decoder: speculates.
    params: of its networks.
    inputs: the encoder's, [B, S], decoded beside each other.
    sampling: how tokens are drawn.
    settings: of each input, with the target's distribution and the room.
    paths: of each input, those of whole decodes, by the oracle.
  """
  room, count = settings[0].max_length, decisions(decoder.drafter)
  prescribed = [
    np.concatenate(uniforms_along(of_input, (room, count))) for of_input in paths
  ]
  # Of inputs with fewer paths, these are repeated.
  most = max(map(len, prescribed))
  shape = most, *prescribed[0].shape[1:]
  uniforms = np.stack([np.resize(of_input, shape) for of_input in prescribed])

  def run(uniforms):
    keys = row_keys(jax.random.key(0), len(inputs) * most)
    spec, state = decoder.prepare(
      params, inputs, keys, sampling, room, settings[0].eos_id
    )
    state = Driven(**vars(state), prescribed=jnp.concatenate(uniforms))
    return generate(spec, state).tokens.reshape(len(inputs), most, -1)

  found = np.asarray(jit(run)(uniforms))
  for setting, of_input, tokens in zip(settings, paths, found, strict=True):
    distributions = probs_of(of_input, tokens[: PLACES * len(of_input)])
    assert_all_are(distributions, outputs_of(setting))
