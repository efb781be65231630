"""Drafters and rules take exactly one uniform per decision, and reuse none."""

import jax
import jax.numpy as jnp
import pytest

from specdec_t5x.core.distributions import LEVELS, Sampling
from specdec_t5x.core.rules import RULES
from specdec_t5x.core.tree import chain, delayed
from specdec_t5x.core.types import Proposal
from specdec_t5x.decoding import loop
from specdec_t5x.decoding.contracts import decisions, decisions_of
from specdec_t5x.decoding.state import row_keys
from tests import table
from tests.hash_model import speculation

pytestmark = pytest.mark.slow

ROWS = 2
MESSAGE = r"Expected uniforms of {} decisions, .* got an array of shape"
CASCADE = table.ROWS["cascade"].drafter(table.TABLES)


def test_an_iteration_takes_uniforms_for_the_draft_and_for_the_rule():
  """tests/test_table.py has the uniforms of every drafter."""
  count = decisions_of(CASCADE) + CASCADE.tree.size + 1
  assert decisions(CASCADE) == count

  def iterate(count):
    keys = row_keys(jax.random.key(0), ROWS)
    rule = RULES["traversal"]
    started = speculation(table.TARGET, CASCADE, rule, Sampling(), keys, 12)
    uniforms = jnp.full((ROWS, count, LEVELS), 0.5)
    return loop.step(*started, uniforms)[0].lengths

  jax.eval_shape(lambda: iterate(count))
  with pytest.raises(ValueError, match=MESSAGE.format(count)):
    jax.eval_shape(lambda: iterate(count - 1))


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
