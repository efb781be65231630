"""Drives compiled rules and the compiled loop along every path of the oracle."""

import dataclasses
import functools
import math
from typing import Any, NamedTuple

import flax.struct
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from specdec_t5x.contrib.link.drafter import Link
from specdec_t5x.contrib.sparse import SparseDraft
from specdec_t5x.core.distributions import LEVELS, Sampling
from specdec_t5x.core.rules import RULES
from specdec_t5x.core.tree import Tree
from specdec_t5x.core.types import Proposal
from specdec_t5x.decoding.contracts import decisions
from specdec_t5x.decoding.loop import generate
from specdec_t5x.decoding.state import DecodeState, row_keys
from specdec_t5x.drafters.draft_model import DraftModel
from specdec_t5x.drafters.heads import HeadDraft
from specdec_t5x.drafters.tree_draft import TreeDraft
from tests import networks
from tests.exactness import enumeration, lengths
from tests.exactness.enumeration import Setting, explore, iterate, outputs_of
from tests.exactness.oracles import JUDGES
from tests.exactness.planting import jit
from tests.hash_model import FIXED, HashHeads, HashModel, SparseHash, speculation

# Float32 may misplace this much probability at an edge of a cell, not more.
MARGIN = 1e-6
LARGEST = 1 - 2.0**-24
PLACES = 3  # Near the lower edge of a cell, in the middle, and near the upper edge.


def uniforms_along(paths, shape):
  """Returns the uniforms that lead along every path, at every place of the cells.

  Args:
    paths: paths with decisions named by places in `shape`.
    shape: the shape of the decisions.

  Returns:
    [PLACES, N, *shape, levels]; unread uniforms are 0.5.
  """
  at = []
  cells = []
  for row, path in enumerate(paths):
    for decision, levels in path.cells.items():
      at += [(row, *decision, -level) for level in range(len(levels), 0, -1)]
      cells += levels
  low, high, reached = np.array(cells).T
  at = np.array(at).T
  margin = MARGIN / reached
  middle = np.minimum((low + high) / 2, LARGEST)
  is_wide = high - low >= 2 * margin
  edges = [np.where(is_wide, edge, middle) for edge in (low + margin, high - margin)]
  shape = PLACES, len(paths), *shape, -at[-1].min()
  uniforms = np.full(shape, 0.5, np.float32)
  uniforms[:, *at] = [edges[0], middle, edges[1]]
  return uniforms


def difference(distribution, other):
  """Returns the largest difference between two distributions of outputs."""
  return max(
    abs(distribution.get(o, 0.0) - other.get(o, 0.0)) for o in {*distribution, *other}
  )


def assert_all_are(distributions, expected):
  """Checks that distributions have full mass and equal the expected distribution."""
  for distribution in distributions:
    assert sum(distribution.values()) == pytest.approx(1, abs=1e-9)
    assert difference(distribution, expected) < 1e-6


# ---- One rule. ----


def rule_probs(rule, setting):
  """Returns the distribution of outputs at each place of the cells.

  The compiled `rule.verify` gives the verdicts. The oracle gives iterations, drafts and
  the probability of each cell of uniforms.
  """
  paths = [
    (prefix, path)
    for prefix in enumeration.prefixes(setting)
    for path in explore(lambda world, p=prefix: iterate(world, setting, p))
  ]
  columns = rule_rows(setting, paths, len(setting.tree))
  # Repeating rows up to a power of four keeps shapes and compiled programs few.
  rows = len(columns[0])
  size = 4 ** math.ceil(math.log(rows, 4))
  target_probs, *draft, uniforms = (
    jnp.asarray(np.resize(column, (size, *column.shape[1:]))) for column in columns
  )
  proposal = Proposal(*draft, Tree(setting.tree))
  verdict = jit(rule.verify)(target_probs, proposal, uniforms)
  columns = [np.asarray(column) for column in (verdict.last, verdict.next_token)]
  verdicts = np.split(np.stack(columns, axis=1)[:rows], PLACES)
  return [probs_of_verdicts(setting, paths, each) for each in verdicts]


def rule_rows(setting, paths, size):
  """Returns target_probs, the proposal's fields and uniforms of paths, per place.

  Args:
    setting: the setting of the decode.
    paths: (prefix, path) of each iteration.
    size: the number of nodes. Nodes beyond the tree, like other invalid nodes, hold
      garbage, which must not matter.
  """
  rows, width = len(paths), setting.target(()).size
  tokens = np.full((rows, size), 2)
  is_valid = np.zeros((rows, size), bool)
  draft_probs = np.full((rows, size, width), 0.7, np.float32)
  target_probs = np.full((rows, size + 1, width), 0.7, np.float32)
  for row, (prefix, path) in enumerate(paths):
    draft = path.result[0]
    for node, drafted in draft.paths.items():
      target_probs[row, node] = setting.target((*prefix, *drafted))
    for node, distribution in draft.distributions.items():
      tokens[row, node - 1] = draft.paths[node][-1]
      draft_probs[row, node - 1] = distribution
      is_valid[row, node - 1] = True
  count = len(setting.tree)
  uniforms = uniforms_along([path for _, path in paths], (2 * count + 1,))
  uniforms = np.insert(uniforms[:, :, count:], [count] * (size - count), 0.5, axis=2)
  columns = target_probs, tokens, draft_probs, is_valid
  columns = [np.concatenate([column] * PLACES) for column in columns]
  return [*columns, np.concatenate(uniforms)]


def probs_of_verdicts(setting, paths, verdicts, then=lambda prefix: ()):
  """Returns the distribution of outputs after verdicts [N, 2] of iterations.

  Args:
    setting: the setting of the decode.
    paths: (prefix, path) of each iteration.
    verdicts: the last accepted node and the next token of each iteration.
    then: the outputs after a prefix without iterations, with their probabilities.
  """
  after = {}
  for (last, next_token), (prefix, path) in zip(verdicts.tolist(), paths, strict=True):
    # An invalid node must not be accepted. Accepting the node would lose mass.
    drafted = path.result[0].paths.get(last)
    if drafted is not None:
      output = enumeration.cut((*prefix, *drafted, next_token), setting)
      after.setdefault(prefix, []).append((output, path.probability))
  # If the oracle never ends an iteration, the caller notices the lost mass.
  return enumeration.absorb(setting, lambda prefix: after.get(prefix) or then(prefix))


# ---- The whole loop. ----


@flax.struct.dataclass
class Driven(DecodeState):
  """A state with prescribed uniforms, [B, iterations, count, levels]."""

  prescribed: jax.Array = None

  def uniforms(self, count):
    rows = jnp.arange(self.iteration.size)
    uniforms = self.prescribed[rows, self.iteration, :count]
    unread = (0, 0), (0, 0), (LEVELS - uniforms.shape[-1], 0)
    return jnp.pad(uniforms, unread, constant_values=0.5)


class Loop(NamedTuple):
  """The models and settings of a compiled loop; settings are plain tuples."""

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
  """Returns the oracle's setting and all paths of whole decodes of table models."""
  target, draft, name, tree, max_length, siblings, policy, eos_id = Loop(*loop)
  # Certain tokens are the likeliest tokens at temperature 1.
  certain = sampling.greedy or siblings == "likeliest"
  p = target.distribution(sampling)
  q = draft.distribution(Sampling() if certain else sampling)
  siblings = "likeliest" if certain else siblings
  judge = JUDGES["greedy" if sampling.greedy else name]
  setting = Setting(p, q, judge, tree.parents, max_length, eos_id, siblings)
  if isinstance(draft, HashHeads):
    # Heads cannot draft before the target's first call.
    setting = dataclasses.replace(
      setting,
      given=lambda prefix, path: (prefix, path),
      stops=lambda prefix, path: not prefix,
    )
  if policy is None:
    return setting, list(explore(lambda world: enumeration.decode(world, setting)))
  resumes = not isinstance(draft, HashHeads)

  def decode(world):
    return lengths.decode(world, [setting], policy, resumes)[0]

  return setting, list(explore(decode))


def assert_the_loop_is_exact(loop, sampling):
  """Checks the distribution of whole outputs, including the padding after an end."""
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
  """Returns the compiled loop's distribution of outputs at each place of the cells."""
  run = jit(
    lambda uniforms: drive(
      uniforms, target, drafter, sampling, name, policy, eos_id=eos_id
    )
  )
  if policy.may_rest:
    # Resting depends on all rows of a batch, so each path is a batch.
    alone = run
    run = jit(jax.vmap(lambda uniforms: alone(uniforms[None])[0]))
  return probs_along(paths, run, decisions(drafter), max_length)


def probs_along(paths, run, count, max_length, rows=()):
  """Returns the distribution of outputs at each place of the cells.

  Args:
    paths: whole decodes by the oracle.
    run: decodes with uniforms [B, *rows, iterations, count, levels] and returns outputs
      [B, *rows, T].
    count: the number of decisions per iteration.
    max_length: the room for the output.
    rows: the number of rows per path, as a tuple; empty for single rows.
  """
  prescribed = uniforms_along(paths, (*rows, max_length, count))
  tokens = run(jnp.asarray(prescribed.reshape(-1, *prescribed.shape[2:])))
  return probs_of(paths, np.asarray(tokens))


def probs_of(paths, tokens):
  """Returns the distribution of the outputs [PLACES * N, ...] of paths, per place."""
  distributions = []
  for outputs in np.split(tokens, PLACES):
    distribution = {}
    for output, path in zip(map(_frozen, outputs.tolist()), paths, strict=True):
      distribution[output] = distribution.get(output, 0.0) + path.probability
    distributions.append(distribution)
  return distributions


def _frozen(nested):
  return tuple(map(_frozen, nested)) if isinstance(nested, list) else nested


def drafter_of(draft, tree, siblings="independent"):
  """Returns the library's drafter for a draft of table models."""
  if isinstance(draft, HashHeads):
    return HeadDraft(draft, tree, siblings)
  if isinstance(draft, SparseHash):
    if draft.remote:
      return Link(draft.remote, tree.size, draft.truncation)
    return SparseDraft(draft.model, tree.size, draft.truncation)
  if tree.is_chain:
    return DraftModel(draft, tree.size)
  return TreeDraft(draft, tree, siblings)


def drive(prescribed, target, drafter, sampling, name, policy=FIXED, *, eos_id=1):
  """Returns the loop's outputs for uniforms [B, iterations, count, levels]."""
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
  """Returns every output of `length` tokens, [N, T]."""
  return np.array(list(np.ndindex(*[size] * length)))


def logits_by_output(read, size, room):
  """Returns logits [V] after each output that leaves room, read in a single call.

  Args:
    read: maps tokens [N, room] with a start token first to logits [N, room, V].
    size: the size of the vocabulary.
    room: the room for the output.
  """
  outputs = every_output(size, room - 1)
  found = np.asarray(read(jnp.pad(outputs, ((0, 0), (1, 0)))))
  return {
    tuple(row[:n]): logits[n]
    for row, logits in zip(outputs.tolist(), found, strict=True)
    for n in range(room)
  }


def assert_the_decoder_is_exact(decoder, params, inputs, sampling, settings, paths):
  """Checks that a decoder driven along paths has the target's distribution of outputs.

  Args:
    decoder: speculates.
    params: the parameters of the decoder's networks.
    inputs: inputs of the encoder, [B, S], decoded side by side.
    sampling: the sampling settings.
    settings: a setting per input, with the target's distribution and the room.
    paths: all paths of whole decodes per input, by the oracle.
  """
  room = settings[0].max_length
  count = decisions(decoder.drafter)
  prescribed = [
    np.concatenate(uniforms_along(of_input, (room, count))) for of_input in paths
  ]
  # Inputs with fewer paths repeat their paths.
  most = max(map(len, prescribed))
  shape = most, *prescribed[0].shape[1:]
  uniforms = np.stack([np.resize(of_input, shape) for of_input in prescribed])

  def run(uniforms):
    keys = row_keys(jax.random.key(0), len(inputs) * most)
    ctx, state = networks.prepare(
      decoder, params, inputs, keys, sampling, room, settings[0].eos_id
    )
    state = Driven(**vars(state), prescribed=jnp.concatenate(uniforms))
    return generate(ctx, state).tokens.reshape(len(inputs), most, -1)

  found = np.asarray(jit(run)(uniforms))
  for setting, of_input, tokens in zip(settings, paths, found, strict=True):
    distributions = probs_of(of_input, tokens[: PLACES * len(of_input)])
    assert_all_are(distributions, outputs_of(setting))
