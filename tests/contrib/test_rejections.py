"""Rejections are kept: the target's distributions at the first rejected tokens only."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from specdec_t5x.contrib.online import rejections
from specdec_t5x.contrib.online.rejections import KeepRejections, Rejections
from specdec_t5x.core.distributions import Sampling
from specdec_t5x.core.rules import RULES
from specdec_t5x.decoding.decoder import Decoder
from specdec_t5x.drafters.draft_model import DraftModel
from specdec_t5x.drafters.tree_draft import TreeDraft, delayed
from specdec_t5x.network.transformer import Transformer
from specdec_t5x.training.objectives import forward
from tests import networks, observed
from tests.hash_model import GivenTable
from tests.t5x_bridge import tiny
from tests.training.conftest import params_of

pytestmark = pytest.mark.slow

KEPT = 2
KEEP = KeepRejections(KEPT)


def assert_kept(found, row, place, target, output):
  """Checks the kept tokens of a place: the likeliest tokens at temperature 1."""
  distribution = target.distribution(observed.AT_ONE)(tuple(output[:place]))
  best = np.argsort(-distribution)[:KEPT]
  np.testing.assert_array_equal(found.observed.tokens[row, place], best)
  kept_probs = found.observed.probs[row, place]
  np.testing.assert_allclose(kept_probs, distribution[best], atol=1e-6)


def greedy(decode, seed):
  """Checks kept places by hand; returns the numbers of rejections and acceptances."""
  target, draft = observed.pair(seed)
  output, kinds = observed.places_by_hand(target, draft)
  found = decode(target.table, draft.table)
  np.testing.assert_array_equal(found.tokens[0, : len(output)], output)
  places = np.flatnonzero(np.array(kinds) == observed.RECOVERED)
  is_kept = np.asarray(found.observed.probs[0]).sum(-1) > 0
  np.testing.assert_array_equal(np.flatnonzero(is_kept), places)
  for place in places:
    assert_kept(found, 0, place, target, output)
  return len(places), found.statistics.accepted.sum()


def test_first_rejected_tokens_keep_the_target_s_distribution():
  @jax.jit
  def decode(*tables):
    target, draft = (GivenTable(table, observed.VOCAB) for table in tables)
    return observed.decoded(KEEP, target, DraftModel(draft, observed.GAMMA))

  counts = [greedy(decode, seed) for seed in range(8)]
  assert counts[0][0] == 0, "the target as its own draft has nothing to learn"
  rejected, accepted = np.sum(counts[1:], axis=0)
  assert rejected > 10
  assert accepted > 10


PUT = Rejections.put
PROBS_AT = rejections.probs_at
FAULTS = {
  "a place on": lambda self, at, *rest: PUT(self, at + 1, *rest),
  "accepted ones, too": lambda self, at, is_rejected, logits: PUT(
    self, at, jnp.ones_like(is_rejected), logits
  ),
  "at another temperature": lambda self, at, is_rejected, logits: PUT(
    self, at, is_rejected, 2 * logits
  ),
  "after another node": lambda logits, node: PROBS_AT(logits, 0 * node),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_planted_faults_fail(fault, monkeypatch):
  where = (rejections, "probs_at") if "node" in fault else (Rejections, "put")
  monkeypatch.setattr(*where, FAULTS[fault])
  with pytest.raises(AssertionError):
    test_first_rejected_tokens_keep_the_target_s_distribution()


@pytest.mark.parametrize(
  ("rule", "sampling"),
  [("block", Sampling(1.0, top_k=3)), ("recursive", Sampling(0.7))],
)
def test_samples_keep_the_distribution_at_temperature_1(rule, sampling):
  target, draft = observed.pair(3)
  tree = TreeDraft(draft, delayed(1, 2, observed.GAMMA))
  drafter = tree if RULES[rule].takes_trees else DraftModel(draft, observed.GAMMA)
  found = observed.decoded(KEEP, target, drafter, sampling, rule, rows=16)
  places = np.argwhere(np.asarray(found.observed.probs).sum(-1) > 0)
  assert len(places) == rejected_of(found).sum() > 16
  outputs = np.asarray(found.tokens)
  for row, place in places:
    assert_kept(found, row, place, target, outputs[row].tolist())


def rejected_of(found):
  return found.statistics.acceptance_positions - found.statistics.accepted


def test_a_row_s_distributions_do_not_depend_on_its_neighbours():
  """A teacher that reads the whole output in one call confirms the distributions."""
  network = Transformer(tiny.DRAFT)
  inputs = jnp.array([[5, 6, 7, 1], [9, 3, 1, 0], [8, 8, 1, 0], [11, 12, 13, 1]])
  params = {name: params_of(network, x) for x, name in enumerate(("target", "draft"))}
  decoder = Decoder(network, DraftModel(network, 3), slots=2, observer=KEEP)
  found = networks.run(decoder, params, inputs, observed.LENGTH)
  batch = networks.forced(inputs, found.tokens)
  teacher = jax.jit(lambda batch: forward(network, params["target"], batch))
  distributions = np.asarray(jax.nn.softmax(teacher(batch)))
  probs = np.asarray(found.observed.probs)
  is_kept = probs.sum(-1) > 0
  np.testing.assert_array_equal(is_kept.sum(axis=1), rejected_of(found))
  assert is_kept.any(axis=1).all()
  kept_tokens = np.asarray(found.observed.tokens)
  expected = np.take_along_axis(distributions, kept_tokens, axis=-1)
  np.testing.assert_allclose(probs[is_kept], expected[is_kept], atol=1e-5)


def test_plain_turns_keep_no_distributions():
  """Drafts fail, and the target continues without drafts."""
  found = observed.of_networks(KEEP)
  probs = np.asarray(found.observed.probs)
  rejected = rejected_of(found)
  assert probs.shape == found.observed.tokens.shape == (4, observed.LENGTH, KEPT)
  np.testing.assert_array_equal((probs.sum(-1) > 0).sum(axis=1), rejected)
  assert rejected.sum() > 0
  assert (found.statistics.target_calls > rejected).all()
