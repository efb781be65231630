"""Heads draft like in training."""

import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from specdec_t5x.core.distributions import Sampling
from specdec_t5x.core.rules import RULES
from specdec_t5x.core.tree import Tree, chain
from specdec_t5x.decoding.contracts import decisions_of
from specdec_t5x.decoding.decoder import Decoder
from specdec_t5x.decoding.loop import step
from specdec_t5x.decoding.state import row_keys
from specdec_t5x.drafters.heads import HeadDraft
from specdec_t5x.drafters.pruned import Pruned
from specdec_t5x.network.functional import network_for
from specdec_t5x.network.heads import HeadsConfig
from specdec_t5x.training.heads import drafted_ahead
from specdec_t5x.training.objectives import forward
from specdec_t5x.ways import drafter_for, headed
from tests import networks
from tests.t5x_bridge import tiny, tiny_gpt
from tests.training.conftest import params_of

pytestmark = pytest.mark.slow

INPUTS = jnp.array([[5, 6, 7, 1], [9, 3, 1, 0], [4, 4, 8, 1]])
ROOM = 14
COUNT = 3
TARGETS = {"t5": tiny.TARGET, "gpt": tiny_gpt.TARGET}


def heads_of(kind, config):
  return network_for(HeadsConfig.of(config, COUNT, kind, hidden_dim=8))


def noisy(network, seed):
  """Returns noisy parameters, so heads do not nearly copy the target's distribution."""
  draw = np.random.default_rng(seed).normal

  def noise(x):
    return jnp.asarray(x + 0.2 * draw(size=x.shape), x.dtype)

  return jax.tree.map(noise, jax.device_get(params_of(network, seed, 1.5)))


@functools.cache
def pair(kind, target="t5"):
  networks = network_for(TARGETS[target]), heads_of(kind, TARGETS[target])
  params = (noisy(network, seed) for seed, network in enumerate(networks))
  return *networks, dict(zip(("target", "draft"), params, strict=True))


def decoder(kind, shape, target="t5"):
  network, heads, params = pair(kind, target)
  return Decoder(network, headed(heads, shape), RULES["traversal"]), params


@pytest.mark.parametrize(
  ("kind", "target"),
  [("parallel", "t5"), ("parallel", "gpt"), ("medusa", "gpt")],
)
def test_drafts_follow_the_trained_distributions(kind, target):
  """Every iteration matches teacher forcing, after any number of accepted tokens.

  tests/exactness has EAGLE's steps.
  """
  speculative, params = decoder(kind, chain(COUNT), target)
  keys = row_keys(jax.random.key(0), len(INPUTS))

  def prepare():
    return networks.prepare(speculative, params, INPUTS, keys, Sampling(), ROOM, -1)

  @jax.jit
  def one(state):
    spec, _ = prepare()
    uniforms = state.uniforms(decisions_of(spec.drafter))
    proposal, _ = spec.drafter.propose(spec, state, uniforms)
    return proposal, step(spec, state)[0]

  state = jax.jit(lambda: prepare()[1])()
  found = []
  while not state.ended.all():
    counts = np.asarray(state.lengths - state.starts) * ~np.asarray(state.ended)
    proposal, state = one(state)
    found.append((proposal, counts))
  tokens = state.decoded(ROOM).tokens
  network, heads, _ = pair(kind, target)
  # The rows have full prompts. Forcing would pack a shorter prompt with the output.
  rows, prompts = ([0, 1, 2], tokens[:, :0]) if target == "t5" else ([0, 2], INPUTS)
  first = prompts.shape[1]
  whole = jnp.concatenate([prompts, tokens], axis=1)[jnp.array(rows)]

  @jax.jit
  def forced(whole):
    batch = networks.forced(INPUTS, whole)
    taps = speculative.drafter.traits.taps
    features = forward(network, params["target"], batch, method="features", taps=taps)
    features = features[:, first:]
    # The drafter reads outputs, not prompts.
    batch["decoder_target_tokens"] = whole[:, first:]
    logits = drafted_ahead(
      heads, params["draft"], network, params["target"], features, batch
    )
    return jax.nn.softmax(jnp.stack(list(logits), axis=2))

  expected = np.asarray(forced(whole))
  assert len(found) > ROOM // (COUNT + 1)
  for proposal, counts in found:
    for place, row in enumerate(rows):
      if counts[row]:
        forced_probs = expected[place, counts[row] - 1]
        probs = proposal.draft_probs[row]
        np.testing.assert_allclose(probs, forced_probs, rtol=2e-3, atol=1e-4)


# ---- Trees that rows prune. ----


@pytest.mark.parametrize(("positions", "nodes"), [(3, 9), (1, 3)])
def test_a_pruned_tree_has_the_best_nodes(positions, nodes):
  """An enumeration of all paths scores heads, pairs in the text, and 3-grams."""
  rng = np.random.default_rng(0)
  rows = 5
  size = 4
  logits = jnp.asarray(rng.normal(size=(rows, positions, size)) * 2, jnp.float32)
  known = jnp.asarray(rng.integers(1, size, (rows, 2)))
  text = jnp.asarray(rng.integers(0, size, (rows, 6)))
  table = rng.dirichlet(np.full(size, 0.1), (size, size)).astype(np.float32)
  lengths = jnp.full(rows, 5)
  asked = []

  def probs_after(before, places):
    # The root is token 4, counting from 0. Children and grandchildren follow.
    asked.append((places == {1: 4, size: 5, size**2: 6}[places.shape[1]]).all())
    return jnp.asarray(table)[before[..., 0], before[..., 1]]

  pruned = Pruned(nodes, width=99, ranks=size, penalty=1.5, weight=0.7)

  @jax.jit
  def grown(logits, known, text):
    grown = pruned.grow(logits, known, lengths, text, probs_after)
    return grown.tokens, grown.is_valid, grown.tree.parents, asked

  tokens, is_valid, parents, are_right = grown(logits, known, text)
  assert len(are_right) == positions
  assert all(are_right)
  distributions = np.asarray(jax.nn.log_softmax(logits), float)
  for row in range(rows):
    pairs = set(itertools.pairwise(text[row].tolist()))
    scores = {(): 0.0}
    for path in scores_paths(size, positions):
      *before, token = (*known[row].tolist(), *path)[-3:]
      stood = (before[-1], token) in pairs and token > 0
      own = distributions[row, len(path) - 1, token] - 1.5 * (not stood)
      own += 0.7 * np.log(max(table[*before, token], 1e-6))
      scores[path] = scores[path[:-1]] + own
    best = sorted((s for path, s in scores.items() if path), reverse=True)[:nodes]
    paths = [()]
    for token, parent in zip(tokens[row], parents[row], strict=True):
      paths.append((*paths[int(parent)], int(token)))
    assert len(set(paths)) == nodes + 1
    assert is_valid[row].all()
    drafted = sorted((scores[path] for path in paths[1:]), reverse=True)
    np.testing.assert_allclose(drafted, best, rtol=1e-4)
    assert (np.diff(parents[row]) >= 0).all()


def scores_paths(size, positions):
  paths = [()]
  for path in paths:
    if len(path) < positions:
      paths += [(*path, x) for x in range(size)]
      yield from ((*path, x) for x in range(size))


def test_nan_logits_draft_an_invalid_token():
  logits = jnp.zeros((1, 2, 4)).at[0, 1].set(jnp.nan)

  @jax.jit
  def grown(logits):
    known = jnp.array([[1]])
    tree = Pruned(3, 2, 2).grow(logits, known, jnp.array([1]), known)
    return tree.tokens, tree.is_valid

  tokens, is_valid = grown(logits)
  assert (tokens[is_valid] == -1).any()


def test_unsupported_settings_are_refused():
  kinds = ("medusa", "parallel", "eagle")
  heads, parallel, eagle = (heads_of(kind, tiny.TARGET) for kind in kinds)
  gpt = network_for(tiny_gpt.TARGET)
  for make, message in [
    (lambda: headed(heads, chain(4)), "depth 4 needs 4 heads, got 3"),
    (lambda: headed(heads, Pruned(99)), "nodes must be at most 18"),
    (lambda: Pruned(ranks=0), "Pruned.ranks must be a whole number"),
    (lambda: Pruned(penalty=-1.0), "penalty must be a finite number of at least 0"),
    (lambda: Pruned(table=heads), "must be a table of n-grams, got a "),
    (
      lambda: headed(heads).check(network_for(tiny.DRAFT)),
      "of width 8, got heads of width",
    ),
    (lambda: headed(parallel).check(gpt), "attends to the target's keys"),
    (lambda: drafter_for("heads", heads, num_candidates=2), "needs a draft model, got"),
    (lambda: headed(eagle, Tree((0, 0))), "EAGLE's drafter drafts chains, got shape="),
    (lambda: headed(eagle, Pruned(6, 3, 3)), "EAGLE's drafter drafts chains"),
  ]:
    with pytest.raises(ValueError, match=message):
      make()


def test_heads_by_name_are_a_chain():
  heads, parallel = (heads_of(kind, tiny.TARGET) for kind in ("medusa", "parallel"))
  assert drafter_for("heads", heads) == HeadDraft(heads)
  assert HeadDraft(heads).tree == chain(3)
  assert drafter_for("heads", heads, gamma=2) == HeadDraft(heads, chain(2))
  assert drafter_for("heads", parallel).tree == chain(3)
