"""Drafters and rules take exactly one uniform per decision, and reuse none."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from specdec_t5x.core.distributions import LEVELS, Sampling
from specdec_t5x.core.rules import RULES
from specdec_t5x.core.tree import chain, delayed
from specdec_t5x.core.types import Proposal
from specdec_t5x.decoding import loop
from specdec_t5x.decoding.contracts import Drafter, decisions, decisions_of
from specdec_t5x.decoding.decoder import Decoder
from specdec_t5x.decoding.loop import generate
from specdec_t5x.decoding.state import row_keys
from specdec_t5x.drafters import cascade
from specdec_t5x.drafters.draft_model import ChainDrafter
from specdec_t5x.network.functional import network_for
from specdec_t5x.network.heads import HeadsConfig
from tests import networks, ways
from tests.decoding.test_generate import assert_follows
from tests.hash_model import sequence_probs, speculation

pytestmark = pytest.mark.slow

ROWS = 2
MESSAGE = r"Expected uniforms of {} decisions, .* got an array of shape"
# Certain chains, and the likeliest tokens of a pruned tree, are not drawn.
DRAWING = {
  name: drafter
  for name, drafter in ways.ON_TABLES.items()
  if name != "pruned heads"
  and (drafter.traits.independent or not isinstance(drafter, ChainDrafter))
}
OF_NETWORKS = ("layer skip", "parallel in a tree")


def prepared(drafter):
  """Returns a speculation and the first state."""
  keys = row_keys(jax.random.key(0), ROWS)
  if drafter in ways.ON_TABLES.values():
    return speculation(ways.TARGET, drafter, RULES["traversal"], Sampling(), keys, 12)
  target = network_for(ways.CONFIGS[0])
  decoder = Decoder(target, drafter, RULES["traversal"])
  params = {name: networks.sharp(x) for name, x in decoder.networks.items()}
  inputs = jnp.ones((ROWS, 4), jnp.int32)
  return networks.prepare(decoder, params, inputs, keys, Sampling(), 12, 1)


def drafter_of(name):
  if name in DRAWING:
    return DRAWING[name]
  config = HeadsConfig.of(ways.CONFIGS[0], ways.GAMMA)
  return ways.WAYS[name].drafter({"parallel": network_for(config)})


def shape_of(drafter, count):
  """Returns the shape of a draft from `count` uniforms."""

  def propose():
    spec, state = prepared(drafter)
    uniforms = jnp.full((ROWS, count, LEVELS), 0.5)
    return drafter.propose(spec, state, uniforms)[0].tokens

  return jax.eval_shape(propose).shape


@pytest.mark.parametrize("name", [*DRAWING, *OF_NETWORKS])
def test_a_drafter_takes_one_uniform_per_decision(name):
  drafter = drafter_of(name)
  count = decisions_of(drafter)
  assert shape_of(drafter, count) == (ROWS, drafter.tree.size)
  for other in (count - 1, count + 1):
    with pytest.raises(ValueError, match=MESSAGE.format(count)):
      shape_of(drafter, other)


def test_an_iteration_takes_uniforms_for_the_draft_and_for_the_rule():
  drafter = DRAWING["cascade"]
  count = decisions_of(drafter) + drafter.tree.size + 1
  assert decisions(drafter) == count

  def iterate(count):
    uniforms = jnp.full((ROWS, count, LEVELS), 0.5)
    return loop.step(*prepared(drafter), uniforms)[0].lengths

  jax.eval_shape(lambda: iterate(count))
  with pytest.raises(ValueError, match=MESSAGE.format(count)):
    jax.eval_shape(lambda: iterate(count - 1))


@dataclasses.dataclass(frozen=True)
class Forgetful(Drafter):
  """Forwards to another drafter, except for the number of decisions."""

  drafter: Drafter

  tree = property(lambda self: self.drafter.tree)
  networks = property(lambda self: self.drafter.networks)

  def start(self, *args):
    return self.drafter.start(*args)

  def propose(self, context, state, uniforms):
    return self.drafter.propose(context, state, uniforms)

  def commit(self, context, drafter_state, verdict, features):
    return self.drafter.commit(context, drafter_state, verdict, features)


def test_reused_uniforms_are_refused_and_would_change_the_distribution(monkeypatch):
  """JAX clamps an index beyond an array's end and would reuse the last uniform."""
  length = 4
  rows = 10_000
  expected = sequence_probs(ways.TARGET, Sampling(), length)

  def samples():
    keys = row_keys(jax.random.key(0), rows)
    drafter = Forgetful(DRAWING["cascade"])
    spec, state = speculation(
      ways.TARGET, drafter, RULES["token"], Sampling(), keys, length
    )
    return np.asarray(jax.jit(lambda: generate(spec, state))().tokens)

  with pytest.raises(ValueError, match="Expected uniforms of 40 decisions"):
    samples()
  monkeypatch.setattr(cascade, "check_uniforms", lambda *_: None)
  with pytest.raises(AssertionError):
    assert_follows(samples(), expected)


def judged(rule, tree, count):
  """Returns the shape of a verdict from `count` uniforms."""
  size = tree.size
  shape = (ROWS, tree.size)
  proposal = Proposal(
    jnp.zeros(shape, jnp.int32),
    jnp.full((*shape, 3), 1 / 3),
    jnp.ones(shape, bool),
    tree,
  )
  probs = jnp.full((ROWS, size + 1, 3), 1 / 3)
  uniforms = jnp.zeros((ROWS, count, 2))
  return jax.eval_shape(lambda: rule.verify(probs, proposal, uniforms).last).shape


# The remaining rules compare tokens, and draw nothing.
READING = sorted(set(RULES) - {"greedy", "top_k", "distance"})
TREES = [(name, delayed(1, 2, 3)) for name in READING if RULES[name].takes_trees]


@pytest.mark.parametrize(
  ("name", "tree"),
  [*((name, chain(3)) for name in READING), *TREES],
  ids=lambda part: part if isinstance(part, str) else f"{part.size} nodes",
)
def test_a_rule_takes_one_uniform_per_node_and_one_more(name, tree, unchecked):
  rule = RULES[name]
  assert judged(rule, tree, tree.size + 1) == (ROWS,)
  for count in (tree.size, 1, tree.size + 2):
    with pytest.raises(ValueError, match=MESSAGE.format(tree.size + 1)):
      judged(rule, tree, count)


@pytest.mark.parametrize("name", sorted(set(RULES) - set(READING)))
def test_rules_that_draw_nothing_read_no_uniforms(name):
  rule = RULES[name]

  @jax.jit
  def verdict(fill):
    proposal = Proposal.chain(jnp.array([[0]]), None, 1)
    uniforms = jnp.full((1, 2, LEVELS), fill)
    found = rule.verify(jnp.eye(3)[None, :2], proposal, uniforms)
    return found.last, found.next_token

  assert verdict(0.0) == verdict(jnp.nan)
