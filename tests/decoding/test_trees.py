"""Trees of drafts, scored and drafted in real networks' caches."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from specdec_t5x.core.distributions import LEVELS, Sampling
from specdec_t5x.core.rules import RULES
from specdec_t5x.core.tree import Tree, delayed
from specdec_t5x.core.types import Proposal, Verdict
from specdec_t5x.decoding import step
from specdec_t5x.decoding.decoders import SpeculativeDecoder
from specdec_t5x.decoding.state import row_keys
from specdec_t5x.drafters.tree_draft import TreeDraft
from specdec_t5x.network.transformer import Transformer
from tests import networks
from tests.t5x_bridge import tiny

NETWORK = Transformer(tiny.config(2, 16, 30))
INPUTS = jnp.array([[5, 6, 7, 1], [9, 3, 1, 0]])
ROWS, PREFIX = 2, 3
# Three candidates; a stem that branches; nodes of any number of children.
TREES = [delayed(0, 3, 4), delayed(2, 2, 4), Tree((0, 0, 1, 1, 2, 3, 3, 5))]


@functools.cache
def params():
  return networks.initialize(NETWORK, INPUTS)["params"]


@functools.cache
def start():
  return networks.start(NETWORK, params(), INPUTS, 40)


def random_tokens(seed, *shape):
  return jnp.asarray(np.random.default_rng(seed).integers(2, 30, shape), jnp.int32)


def line(tree, node):
  """The drafted nodes from the root to one of them."""
  return [*line(tree, tree.parents[node - 1]), node] if node else []


@functools.cache
def scored(tree):
  """A prefix, drafts after it, and their scores as a tree."""
  extend, cache = start()
  prefix = random_tokens(1, ROWS, PREFIX)
  cache = extend(cache, prefix)[2].at(jnp.full(ROWS, PREFIX - 1))
  tokens = random_tokens(2, ROWS, tree.size)
  draft = Proposal(tokens, None, jnp.ones(tokens.shape, bool), tree)
  score = jax.jit(functools.partial(step.score_tree, extend))
  return prefix, draft, score(cache, prefix[:, -1], draft)


@pytest.mark.parametrize("tree", TREES, ids=str)
def test_each_path_is_scored_as_if_it_were_alone(tree):
  prefix, draft, (logits, features, _) = scored(tree)
  extend, cache = start()
  for node in set(range(1, tree.size + 1)) - set(tree.parents):
    path = np.array(line(tree, node))
    whole = jnp.concatenate([prefix, draft.tokens[:, path - 1]], axis=1)
    alone, alone_features, _ = extend(cache, whole)
    last, path = slice(PREFIX - 1, None), [0, *path]
    np.testing.assert_allclose(logits[:, path], alone[:, last], atol=1e-5)
    np.testing.assert_allclose(features[:, path], alone_features[:, last], atol=1e-5)


@pytest.mark.parametrize("tree", TREES, ids=str)
def test_what_is_kept_is_as_if_there_had_been_no_other(tree):
  prefix, draft, (_, _, cache) = scored(tree)
  extend, empty = start()
  # The deepest node of the last branch in row 0, and a node half way in row 1.
  kept = tree.size, tree.parents[-1]
  verdict = Verdict(jnp.array(kept), jnp.zeros(ROWS, jnp.int32))
  keep = jax.jit(step._keep_path)
  cache = keep(cache, jnp.full(ROWS, PREFIX), draft, verdict)
  paths = [np.array(line(tree, node)) for node in kept]
  more = random_tokens(3, ROWS, 2)
  after = extend(cache.at(jnp.array([PREFIX + path.size for path in paths])), more)[0]
  for row, path in enumerate(paths):
    known = [prefix[row], draft.tokens[row, path - 1], more[row]]
    whole = jnp.tile(jnp.concatenate(known), (ROWS, 1))
    expected = extend(empty, whole)[0][row, -2:]
    np.testing.assert_allclose(after[row], expected, atol=1e-5)


@pytest.mark.parametrize("tree", TREES, ids=str)
def test_all_drafts_go_on_from_the_one_that_was_kept(tree):
  drafter = TreeDraft(NETWORK, tree)
  decoder = SpeculativeDecoder(NETWORK, drafter, RULES["recursive"])
  both = {"target": params(), "draft": params()}
  keys = row_keys(jax.random.key(0), ROWS)
  spec, state = decoder.prepare(both, INPUTS, keys, Sampling(), 20, 1)
  propose = jax.jit(lambda *args: drafter.propose(spec.context, *args))
  uniforms = lambda seed: jax.random.uniform(
    jax.random.key(seed), (ROWS, tree.size, LEVELS)
  )
  sequences = state.sequences.at[:, 1].set(4)
  state = state.replace(sequences=sequences, lengths=jnp.full(ROWS, 2))
  first, own = propose(state, uniforms(0))
  last = tree.size
  path = np.array(line(tree, last))
  verdict = Verdict(jnp.full(ROWS, last), jnp.full(ROWS, 7))
  features = jnp.zeros((ROWS, tree.size + 1, 1))
  own = jax.jit(lambda *args: drafter.commit(spec.context, *args))(
    own, verdict, features
  )
  block = jnp.pad(first.tokens[:, path - 1], ((0, 0), (0, 1)), constant_values=7)
  known = 2 + path.size + 1
  sequences = sequences.at[:, 2:known].set(block)
  state = state.replace(
    sequences=sequences, lengths=jnp.full(ROWS, known), drafter_state=own
  )
  second, _ = propose(state, uniforms(1))
  # The distributions of a fresh start: of the root's children, and of all below.
  extend, empty = start()
  for node in range(1, tree.size + 1):
    above = np.array(line(tree, tree.parents[node - 1]), int)
    # One length for all, so that one program serves.
    beyond = random_tokens(0, ROWS, tree.depth - above.size)
    whole = [sequences[:, :known], second.tokens[:, above - 1], beyond]
    logits = extend(empty, jnp.concatenate(whole, axis=1))[0]
    expected = jax.nn.softmax(logits[:, known + above.size - 1])
    np.testing.assert_allclose(second.draft_probs[:, node - 1], expected, atol=1e-5)
