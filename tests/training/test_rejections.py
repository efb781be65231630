"""The distributions that are kept of an output: those at the first rejected token, no
others."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from specdec_t5x.core.distributions import GREEDY, Sampling
from specdec_t5x.core.rules import RULES
from specdec_t5x.core.tree import delayed
from specdec_t5x.decoding.decoders import SpeculativeDecoder
from specdec_t5x.decoding.generate import generate
from specdec_t5x.decoding.state import row_keys
from specdec_t5x.drafters.draft_model import DraftModel
from specdec_t5x.drafters.tree_draft import TreeDraft
from specdec_t5x.network.transformer import Transformer
from specdec_t5x.policies import CostAware
from specdec_t5x.training import rejections
from specdec_t5x.training.objectives import forward
from specdec_t5x.training.rejections import KeepRejections, Rejections
from tests import networks
from tests.hash_model import HashModel, speculation
from tests.t5x_bridge import tiny

LENGTH, GAMMA, KEPT, VOCAB = 12, 3, 2, 4
AT_ONE = Sampling(1.0)
SEEDS = range(8)


def pair(seed):
  """Alike, so that some drafted tokens stand."""
  target = HashModel(seed, VOCAB, eos_bias=-1.0)
  return target, target if seed == 0 else HashModel(seed + 50, VOCAB, scale=0.3)


def decoded(target, drafter, sampling=GREEDY, rule="token", rows=1):
  keys = row_keys(jax.random.key(0), rows)
  spec, state = speculation(target, drafter, RULES[rule], sampling, keys, LENGTH)
  observe = KeepRejections(KEPT)
  return jax.jit(lambda: generate(spec, state, observe=observe))()


def expected_places(target, draft):
  """Places of a greedy decode where the draft's likeliest token is not the target's."""
  p, q = target.distribution(AT_ONE), draft.distribution(AT_ONE)
  output, places = [], []
  while len(output) < LENGTH and 1 not in output:
    for i in range(GAMMA + 1):
      known = tuple(output)
      token = int(p(known).argmax())
      output.append(token)
      # The last token of the room, and the one after a whole draft, nobody drafted.
      is_drafted = i < GAMMA and len(output) < LENGTH
      if is_drafted and q(known).argmax() != token:
        places.append(len(known))
      if not is_drafted or q(known).argmax() != token or token == 1:
        break
  return output, places


def assert_kept_as_expected(seed):
  target, draft = pair(seed)
  output, places = expected_places(target, draft)
  found = decoded(target, DraftModel(draft, GAMMA))
  np.testing.assert_array_equal(found.tokens[0, : len(output)], output)
  kept = found.observed
  np.testing.assert_array_equal(np.flatnonzero(kept.probs[0].sum(-1)), places)
  for place in places:
    distribution = target.distribution(AT_ONE)(tuple(output[:place]))
    best = np.argsort(-distribution)[:KEPT]
    np.testing.assert_array_equal(kept.tokens[0, place], best)
    np.testing.assert_allclose(kept.probs[0, place], distribution[best], atol=1e-6)
  return len(places), found.statistics.accepted.sum()


@pytest.mark.parametrize("seed", SEEDS)
def test_they_are_the_target_s_distributions_at_the_first_rejected_tokens(seed):
  assert_kept_as_expected(seed)


def assert_all_kept_as_expected():
  return [assert_kept_as_expected(seed) for seed in SEEDS]


def test_the_seeds_have_rejections_and_acceptances():
  counts = assert_all_kept_as_expected()
  assert counts[0][0] == 0, "the target as its own draft has nothing to learn"
  rejected, accepted = np.sum(counts[1:], axis=0)
  assert rejected > 10
  assert accepted > 10


def _one_on(put):
  return lambda self, place, *rest: put(self, place + 1, *rest)


def _accepted_too(put):
  def faulty(self, place, is_rejected, logits):
    return put(self, place, jnp.ones_like(is_rejected), logits)

  return faulty


def _adjusted(put):
  return lambda self, place, is_rejected, logits: put(
    self, place, is_rejected, 2 * logits
  )


@pytest.mark.parametrize("fault", [_one_on, _accepted_too, _adjusted])
def test_a_planted_fault_fails(fault, monkeypatch):
  monkeypatch.setattr(Rejections, "put", fault(Rejections.put))
  with pytest.raises(AssertionError):
    assert_all_kept_as_expected()


def test_the_distribution_after_another_node_fails(monkeypatch):
  probs_at = rejections.chain.probs_at
  monkeypatch.setattr(
    rejections.chain,
    "probs_at",
    lambda distributions, at: probs_at(distributions, 0 * at),
  )
  with pytest.raises(AssertionError):
    assert_all_kept_as_expected()


@pytest.mark.parametrize("rule", ["token", "block", "recursive", "traversal"])
@pytest.mark.parametrize("sampling", [Sampling(0.7), Sampling(1.0, top_k=3)], ids=str)
def test_what_is_kept_of_a_sample_is_the_distribution_at_temperature_1(rule, sampling):
  target, draft = pair(3)
  is_chain = not RULES[rule].takes_trees
  shape = delayed(1, 2, GAMMA)
  drafter = DraftModel(draft, GAMMA) if is_chain else TreeDraft(draft, shape)
  found = decoded(target, drafter, sampling, rule, rows=16)
  kept_tokens, probs, outputs = map(np.asarray, _arrays(found))
  places = np.argwhere(probs.sum(-1) > 0)
  info = found.statistics
  assert len(places) == (info.acceptance_positions - info.accepted).sum() > 16
  for row, place in places:
    distribution = target.distribution(AT_ONE)(tuple(outputs[row, :place].tolist()))
    best = np.argsort(-distribution)[:KEPT]
    np.testing.assert_array_equal(kept_tokens[row, place], best)
    np.testing.assert_allclose(probs[row, place], distribution[best], atol=1e-6)


def _arrays(found):
  return found.observed.tokens, found.observed.probs, found.tokens


@pytest.mark.parametrize("slots", [0, 2])
def test_a_row_s_distributions_do_not_depend_on_its_neighbours(slots):
  """Of networks, against a teacher that reads the whole output at once."""
  target, draft = Transformer(tiny.TARGET), Transformer(tiny.DRAFT)
  inputs = jnp.array([[5, 6, 7, 1], [9, 3, 1, 0], [8, 8, 1, 0], [11, 12, 13, 1]])
  params = {
    name: jax.tree.map(
      lambda x: 2 * x, networks.initialize(network, inputs, seed)["params"]
    )
    for seed, (name, network) in enumerate([("target", target), ("draft", draft)])
  }
  decoder = SpeculativeDecoder(
    target, DraftModel(draft, 3), slots=slots, observer=KeepRejections(KEPT)
  )
  keys = row_keys(jax.random.key(0), 4)
  run = jax.jit(lambda: decoder.decode(params, inputs, keys, GREEDY, LENGTH, 1))
  found = run()
  kept_tokens, probs, tokens = map(np.asarray, _arrays(found))
  shifted = np.pad(tokens, ((0, 0), (1, 0)))[:, :-1]
  read = {
    "encoder_input_tokens": inputs,
    "decoder_input_tokens": shifted,
    "decoder_target_tokens": tokens,
  }
  teacher = jax.jit(lambda read: forward(target, params["target"], read))
  distributions = jax.nn.softmax(teacher(read))
  is_kept = probs.sum(-1) > 0
  info = found.statistics
  np.testing.assert_array_equal(
    is_kept.sum(axis=1), info.acceptance_positions - info.accepted
  )
  assert is_kept.any(axis=1).all()
  expected = np.take_along_axis(np.asarray(distributions), kept_tokens, axis=-1)
  np.testing.assert_allclose(probs[is_kept], expected[is_kept], atol=1e-5)


@pytest.mark.parametrize("seconds", [(), (1.0, 9.0, 9.0), (1.0, 1.7, 1.8)], ids=str)
@pytest.mark.parametrize("slots", [0, 2])
def test_where_nothing_is_drafted_nothing_is_kept(seconds, slots):
  """No draft is worth a try; or drafts fail, and the target goes on by itself."""
  network = Transformer(tiny.DRAFT)
  inputs, keys = jnp.ones((4, 3), jnp.int32), row_keys(jax.random.key(0), 4)
  target, draft = (networks.initialize(network, inputs, i)["params"] for i in (0, 1))
  policy = CostAware(seconds, prior_weight=1.0)
  decoder = SpeculativeDecoder(
    network,
    DraftModel(network, 2),
    policy=policy,
    slots=slots,
    observer=KeepRejections(KEPT),
  )
  given = {"target": target, "draft": draft}, inputs, keys, AT_ONE, LENGTH, 1
  found = jax.jit(lambda: decoder.decode(*given))()
  info, probs = found.statistics, np.asarray(found.observed.probs)
  assert probs.shape == found.observed.tokens.shape == (4, LENGTH, KEPT)
  rejected = info.acceptance_positions - info.accepted
  np.testing.assert_array_equal((probs.sum(-1) > 0).sum(axis=1), rejected)
  assert (rejected.sum() > 0) == (seconds != (1.0, 9.0, 9.0))
  assert (info.target_calls > rejected).all()


@pytest.mark.parametrize("kept", [-1, 0, 64])
def test_no_such_number_of_tokens_is_kept(kept):
  networks_ = Transformer(tiny.TARGET), DraftModel(Transformer(tiny.DRAFT))
  with pytest.raises(ValueError, match="KEPT must be a whole number from 1 to 63"):
    SpeculativeDecoder(*networks_, observer=KeepRejections(kept))
