"""Drives one compiled step of the loop along every path of `trees` on every tree.

The drafter proposes data, so every row of a program has a separate path: a tree, tokens
on the tree, and uniforms that lead to an outcome of every decision. A step follows
every possible prefix. A Markov chain of prefixes gives the distributions of whole
outputs.
"""

import dataclasses
import functools

import flax.struct
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from specdec_t5x.core.distributions import LEVELS, Sampling
from specdec_t5x.core.rules import RULES
from specdec_t5x.core.tree import Tree
from specdec_t5x.core.types import Proposal
from specdec_t5x.decoding import loop
from specdec_t5x.decoding.contracts import Drafter
from specdec_t5x.decoding.state import DecodeState, row_keys
from tests.exactness import trees
from tests.exactness.driving import LARGEST, MARGIN, difference
from tests.exactness.enumeration import Setting, absorb, target_probs
from tests.exactness.planting import jit
from tests.hash_model import HashModel, TokenCache, speculation

TARGET, DRAFT = (HashModel(seed, vocab_size=3) for seed in (3, 4))
MOST = 5
ROOM = 6
CHUNK = 1 << 13


@dataclasses.dataclass(frozen=True)
class Given(Drafter):
  """Proposes the proposal in its state; every row has a separate tree."""

  @property
  def tree(self):
    return Tree((0,) * MOST)

  @property
  def depth(self):
    return MOST

  def propose(self, context, state, uniforms):
    return state.drafter_state, state.drafter_state


@flax.struct.dataclass
class OneStep(DecodeState):
  """A state with prescribed rooms [B] and prescribed uniforms of tests [B, N]."""

  rooms: jax.Array = None
  prescribed: jax.Array = None

  def uniforms(self, count):
    draws = jnp.pad(self.prescribed, ((0, 0), (count - MOST - 1, 0)))
    return jnp.broadcast_to(draws[..., None], (*draws.shape, LEVELS))

  def remaining(self, max_length):
    return self.rooms


def prefixes_of(max_length):
  """Returns every output that has not ended, up to the last place."""
  prefixes = [()]
  for prefix in prefixes:
    if len(prefix) < max_length - 1:
      prefixes += [(*prefix, x) for x in range(3) if x != trees.EOS]
  return prefixes


def room_of(parents):
  """Returns the room for the deepest node, and for a second draft if trees are flat."""
  return max(max(trees.depths_of(parents)) + 1, 3)


@functools.cache
def paths_of(rule, siblings, sampling, parents):
  """Returns every path of an iteration after every prefix."""
  room = room_of(parents)
  paths = trees.Paths(TARGET, DRAFT, sampling, parents, prefixes_of(room), room)
  return paths.draft(siblings).judged(trees.JUDGES[rule])


def rows_of(paths, parents, rng):
  """Returns the paths as rows of the program's inputs, padded to the largest tree."""
  prefixes = prefixes_of(room_of(parents))
  size = len(parents)
  outputs = np.zeros((len(prefixes), ROOM), int)
  for row, prefix in zip(outputs, prefixes, strict=True):
    row[1 : 1 + len(prefix)] = prefix
  margin = MARGIN / paths.reached
  low = paths.low + margin
  high = paths.high - margin
  edges = np.where(rng.random(low.shape) < 0.5, low, high)
  middle = np.minimum((paths.low + paths.high) / 2, LARGEST)
  draws = np.where(low < high, edges, middle)

  def pad(x, **how):
    return np.pad(x, ((0, 0), (0, MOST - size)) + ((0, 0),) * (x.ndim - 2), **how)

  return {
    "known": outputs[paths.prefix],
    "lengths": 1 + paths.place,
    "rooms": paths.room,
    "parents": np.tile(pad(np.array([parents]), mode="edge"), (len(draws), 1)),
    "tokens": pad(paths.tokens[:, 1:], constant_values=trees.GARBAGE),
    "distributions": pad(
      paths.distributions[:, 1:].astype(np.float32), constant_values=0.7
    ),
    # The loop drops nodes without room and nodes after an EOS.
    "is_valid": pad(paths.has_token[:, 1:]),
    "draws": np.float32(np.concatenate([pad(draws[:, :-1]), draws[:, -1:]], 1)),
  }


def program(rule, siblings, sampling):
  """Returns a program of one step, which returns sequences, lengths and ends."""
  keys = row_keys(jax.random.key(0), CHUNK)
  certain = siblings == "likeliest"

  def run(rows):
    spec, start = speculation(TARGET, Given(), RULES[rule], sampling, keys, ROOM)
    tree = Tree(rows["parents"])
    distributions = None if certain else rows["distributions"]
    slots = start.target_cache.tokens.shape[1]
    is_committed = jnp.arange(ROOM) < rows["lengths"][:, None] - 1
    committed = jnp.where(is_committed, rows["known"], 3)
    committed = jnp.pad(committed, ((0, 0), (0, slots - ROOM)), constant_values=3)
    state = {
      **vars(start),
      "sequences": start.sequences.at[:, :ROOM].set(rows["known"]),
      "lengths": rows["lengths"],
      "target_cache": TokenCache(rows["lengths"] - 1, committed),
      "drafter_state": Proposal(rows["tokens"], distributions, rows["is_valid"], tree),
    }
    draws = {"rooms": rows["rooms"], "prescribed": rows["draws"]}
    state, _ = loop.step(spec, OneStep(**state, **draws))
    is_kept = jnp.arange(slots) < state.lengths[:, None] - 1
    kept = state.target_cache.tokens == state.sequences[:, :slots]
    return {
      "sequences": state.sequences[:, : ROOM + 1],
      "lengths": state.lengths,
      "ended": state.ended,
      "cache_is_right": jnp.where(is_kept, kept, True).all(axis=1),
    }

  return jit(run)


def run_all(run, rows):
  """Runs a program over all rows in chunks."""
  count = len(rows["lengths"])
  found = []
  for first in range(0, count, CHUNK):
    at = np.minimum(np.arange(first, first + CHUNK), count - 1)
    found.append(jax.tree.map(np.asarray, run({n: x[at] for n, x in rows.items()})))
  return {n: np.concatenate([f[n] for f in found])[:count] for n in found[0]}


def probs_of(parents, paths, after):
  """Returns the distribution of whole outputs, from steps weighted by probability."""
  room = room_of(parents)
  setting = Setting(TARGET.distribution(Sampling()), None, None, parents, room)
  prefixes = prefixes_of(room)
  steps = {}
  keys = np.concatenate([paths.prefix[:, None], after], axis=1)
  found, of = np.unique(keys, axis=0, return_inverse=True)
  masses = np.bincount(of.ravel(), weights=paths.probability)
  for (prefix, length, *tokens), mass in zip(found.tolist(), masses, strict=True):
    output = tuple(tokens[1:length])
    steps.setdefault(prefixes[prefix], []).append((output, mass))
  return absorb(setting, lambda prefix: steps.get(prefix, []))


def expected_after(paths, parents):
  """Returns lengths and sequences after the oracle's paths."""
  prefixes = prefixes_of(room_of(parents))
  accepted, depth = paths.accepted()
  rows = np.zeros((len(depth), 2 * ROOM + 2), int)
  for number, prefix in enumerate(prefixes):
    is_after_prefix = paths.prefix == number
    size = len(prefix)
    new = accepted[is_after_prefix]
    new[np.arange(len(new)), depth[is_after_prefix]] = paths.next_token[is_after_prefix]
    lengths = np.where(
      (new == trees.EOS).any(1), (new == trees.EOS).argmax(1), depth[is_after_prefix]
    )
    new[np.arange(new.shape[1]) > lengths[:, None]] = 0
    rows[is_after_prefix, 0] = size + 2 + lengths
    rows[is_after_prefix, 2 : 2 + size] = prefix
    rows[is_after_prefix, 2 + size : 2 + size + new.shape[1]] = new
  return rows[:, : ROOM + 2]


def assert_exact_on(every_tree, rule, siblings, sampling):
  rng = np.random.default_rng(0)
  parts = []
  expected = {}
  for parents in every_tree:
    paths = paths_of(rule, siblings, sampling, parents)
    setting = Setting(
      TARGET.distribution(sampling), None, None, parents, room_of(parents)
    )
    expected[parents] = target_probs(setting)
    oracle_distribution = probs_of(parents, paths, expected_after(paths, parents))
    assert difference(oracle_distribution, expected[parents]) < 1e-9
    parts.append(rows_of(paths, parents, rng))
  rows = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
  found = run_all(program(rule, siblings, sampling), rows)
  assert found["cache_is_right"].all()
  after = np.concatenate([found["lengths"][:, None], found["sequences"]], axis=1)
  is_full = found["lengths"] == rows["lengths"] + rows["rooms"]
  last = found["sequences"][np.arange(len(after)), found["lengths"] - 1]
  np.testing.assert_array_equal(found["ended"], is_full | (last == trees.EOS))
  ends = np.cumsum([len(part["lengths"]) for part in parts])
  for parents, after_tree in zip(every_tree, np.split(after, ends[:-1]), strict=True):
    distribution = probs_of(
      parents, paths_of(rule, siblings, sampling, parents), after_tree
    )
    assert sum(distribution.values()) == pytest.approx(1, abs=1e-9)
    assert difference(distribution, expected[parents]) < 1e-6
