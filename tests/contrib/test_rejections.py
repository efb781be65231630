"""Rejections are kept: the target's distributions at the first rejected tokens only."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from specdec_t5x.contrib.online import rejections
from specdec_t5x.contrib.online.rejections import KeepRejections
from specdec_t5x.core.distributions import GREEDY, Sampling
from specdec_t5x.core.rules import RULES
from specdec_t5x.decoding.decoder import Decoder
from specdec_t5x.decoding.loop import generate
from specdec_t5x.decoding.policies import CostAware
from specdec_t5x.decoding.state import row_keys
from specdec_t5x.drafters.draft_model import DraftModel
from specdec_t5x.drafters.tree_draft import TreeDraft, delayed
from specdec_t5x.network.transformer import Transformer
from specdec_t5x.training.objectives import forward
from tests import networks
from tests.hash_model import GivenTable, HashModel, speculation
from tests.t5x_bridge import tiny
from tests.training.conftest import params_of

pytestmark = pytest.mark.slow

KEPT = 2
KEEP = KeepRejections(KEPT)
LENGTH, GAMMA, VOCAB = 12, 3, 4
# The origins of a token. OWN: the target's token after a fully accepted or an empty
# draft. ACCEPTED: a drafted token. RECOVERED: the replacement of a rejected token.
OWN, ACCEPTED, RECOVERED = range(3)
AT_ONE = Sampling(1.0)


def pair(seed):
  """Returns similar models, so that some drafts are accepted; equal for seed 0."""
  target = HashModel(seed, VOCAB, eos_bias=-1.0)
  return target, target if seed == 0 else HashModel(seed + 50, VOCAB, scale=0.3)


def decoded(observe, target, drafter, sampling=GREEDY, rule="traversal", rows=1):
  keys = row_keys(jax.random.key(0), rows)
  spec, state = speculation(target, drafter, RULES[rule], sampling, keys, LENGTH)
  state = state.replace(observed=observe.start(rows, LENGTH))
  return jax.jit(lambda: generate(spec, state, observe=observe))()


def places_by_hand(target, draft):
  """Returns a greedy output, and whether tokens were drafted and accepted."""
  p, q = target.distribution(AT_ONE), draft.distribution(AT_ONE)
  output = []
  places = []
  drafted = 0
  while len(output) < LENGTH and 1 not in output:
    token, guess = (int(x(tuple(output)).argmax()) for x in (p, q))
    # The last token of the room is not drafted, nor the token after a full draft.
    may_draft = drafted < GAMMA and len(output) < LENGTH - 1
    places.append((ACCEPTED if guess == token else RECOVERED) if may_draft else OWN)
    drafted = drafted + 1 if places[-1] == ACCEPTED else 0
    output.append(token)
  return output, places


def assert_kept(found, row, place, target, output):
  """Checks the kept tokens of a place: the likeliest tokens at temperature 1."""
  distribution = target.distribution(AT_ONE)(tuple(output[:place]))
  best = np.argsort(-distribution)[:KEPT]
  np.testing.assert_array_equal(found.observed.tokens[row, place], best)
  kept_probs = found.observed.probs[row, place]
  np.testing.assert_allclose(kept_probs, distribution[best], atol=1e-6)


def greedy(decode, seed):
  """Checks kept places by hand; returns the numbers of rejections and acceptances."""
  target, draft = pair(seed)
  output, kinds = places_by_hand(target, draft)
  found = decode(target.table, draft.table)
  np.testing.assert_array_equal(found.tokens[0, : len(output)], output)
  places = np.flatnonzero(np.array(kinds) == RECOVERED)
  is_kept = np.asarray(found.observed.probs[0]).sum(-1) > 0
  np.testing.assert_array_equal(np.flatnonzero(is_kept), places)
  for place in places:
    assert_kept(found, 0, place, target, output)
  return len(places), found.statistics.accepted.sum()


def test_first_rejected_tokens_keep_the_target_s_distribution():
  @jax.jit
  def decode(*tables):
    target, draft = (GivenTable(table, VOCAB) for table in tables)
    return decoded(KEEP, target, DraftModel(draft, GAMMA))

  counts = [greedy(decode, seed) for seed in range(8)]
  assert counts[0][0] == 0, "the target as its own draft has nothing to learn"
  rejected, accepted = np.sum(counts[1:], axis=0)
  assert rejected > 10
  assert accepted > 10


PROBS_AT = rejections.probs_at
OBSERVE = KeepRejections.observe
FAULTS = {
  "a place on": (
    *(KeepRejections, "observe"),
    lambda self, kept, before, iteration: OBSERVE(
      self, kept, before.replace(lengths=before.lengths + 1), iteration
    ),
  ),
  "accepted ones, too": (
    *(rejections, "is_cut"),
    lambda proposal, verdict: jnp.ones_like(verdict.last, bool),
  ),
  "at another temperature": (
    *(rejections, "probs_at"),
    lambda logits, node: 2 * PROBS_AT(logits, node),
  ),
  "after another node": (
    *(rejections, "probs_at"),
    lambda logits, node: PROBS_AT(logits, 0 * node),
  ),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_planted_faults_fail(fault, monkeypatch):
  monkeypatch.setattr(*FAULTS[fault])
  with pytest.raises(AssertionError):
    test_first_rejected_tokens_keep_the_target_s_distribution()


@pytest.mark.parametrize(
  ("rule", "sampling"),
  [("block", Sampling(1.0, top_k=3)), ("recursive", Sampling(0.7))],
)
def test_samples_keep_the_distribution_at_temperature_1(rule, sampling):
  target, draft = pair(3)
  tree = TreeDraft(draft, delayed(1, 2, GAMMA))
  drafter = tree if RULES[rule].takes_trees else DraftModel(draft, GAMMA)
  found = decoded(KEEP, target, drafter, sampling, rule, rows=16)
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
  found = networks.run(decoder, params, inputs, LENGTH)
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
  """Drafts fail, and the target continues without drafts; rows take turns."""
  network = Transformer(tiny.DRAFT)
  inputs = jnp.ones((4, 3), jnp.int32)
  params = {name: params_of(network, x) for x, name in enumerate(("target", "draft"))}
  policy = CostAware((1.0, 1.7, 1.8), prior_weight=1.0)
  draft = DraftModel(network, 2)
  decoder = Decoder(network, draft, policy=policy, slots=2, observer=KEEP)
  found = networks.run(decoder, params, inputs, LENGTH, AT_ONE)
  probs = np.asarray(found.observed.probs)
  rejected = rejected_of(found)
  assert probs.shape == found.observed.tokens.shape == (4, LENGTH, KEPT)
  np.testing.assert_array_equal((probs.sum(-1) > 0).sum(axis=1), rejected)
  assert rejected.sum() > 0
  assert (found.statistics.target_calls > rejected).all()
