"""Around every drafter the target may decode by itself for a while: nothing is bent."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from specdec_t5x.core.distributions import GREEDY, Sampling
from specdec_t5x.core.rules import RULES
from specdec_t5x.core.tree import Tree, delayed
from specdec_t5x.decoding.baseline import generate_plain
from specdec_t5x.decoding.decoders import PlainDecoder, SpeculativeDecoder
from specdec_t5x.decoding.drafter import Drafter
from specdec_t5x.decoding.generate import generate
from specdec_t5x.decoding.state import initial_state, row_keys
from specdec_t5x.drafters import cascade
from specdec_t5x.drafters.cascade import Cascade
from specdec_t5x.drafters.copy import Copy
from specdec_t5x.drafters.draft_model import DraftModel
from specdec_t5x.drafters.heads import HeadDraft
from specdec_t5x.drafters.layer_skip import LayerSkip
from specdec_t5x.drafters.link import Link
from specdec_t5x.drafters.parallel import ParallelDraft
from specdec_t5x.drafters.sparse import SparseDraft
from specdec_t5x.drafters.tree_draft import TreeDraft
from specdec_t5x.native.distributions import adjusted_probs
from specdec_t5x.network.functional import initial_variables, network_for
from specdec_t5x.network.heads import HeadsConfig
from specdec_t5x.network.parallel import ParallelConfig
from tests.decoding.test_generate import assert_follows, similar
from tests.hash_model import HashHeads, HashModel, sequence_probs, speculation
from tests.link.local import Local, honest
from tests.t5x_bridge import tiny
from tests.test_policies import Alternating, watch

TARGET = HashModel(seed=1, vocab_size=5, eos_bias=-1.5)
MIDDLE = similar(TARGET, 0.6)
LOWER = HashModel(seed=2, vocab_size=5, eos_bias=-1.5)
HEADS = HashHeads(4, 5, HeadsConfig("medusa", 3, 1), False)
READING = HashHeads(4, 5, HeadsConfig("hydra", 3, 1), True)
DRAFTERS = {
  "draft model": DraftModel(MIDDLE, 4),
  "copy": Copy(3, match=1),
  "tree": TreeDraft(MIDDLE, delayed(1, 2, 3)),
  "distinct tree": TreeDraft(MIDDLE, Tree((0, 0, 1, 1)), "distinct"),
  "sparse": SparseDraft(MIDDLE, 3, top_k=4),
  "cascade": Cascade(MIDDLE, DraftModel(LOWER, 2), 8),
  "cascade that ends early": Cascade(MIDDLE, DraftModel(LOWER, 2), 4, "flush"),
  "cascade of copies": Cascade(MIDDLE, Copy(2, match=1), 4),
  "three levels": Cascade(MIDDLE, Cascade(LOWER, DraftModel(LOWER, 1), 3), 6),
  "link": Link(Local.of(honest(MIDDLE)), 3, top_k=4),
  "heads": HeadDraft(HEADS),
  "heads of a tree": HeadDraft(READING, Tree((0, 0, 1, 1, 3))),
}
SOURCE = jnp.array([3, 2, 4, 3, 4, 2, 1])
# Those that go on after a rest draft in every other iteration, the others at first.
POLICIES = {True: Alternating(), False: Alternating(drafts=2)}


def decode(drafter, sampling, rows, length, loop=jax.lax.while_loop):
  """What rows of one source decode with rests in between."""
  keys, source = row_keys(jax.random.key(0), rows), jnp.tile(SOURCE, (rows, 1))
  rule = RULES["token" if drafter.tree.is_chain else "traversal"]
  given = TARGET, drafter, rule, sampling, keys, length
  policy = POLICIES[drafter.resumes]
  return generate(*speculation(*given, source=source, policy=policy), loop)


def plain(rows, length):
  keys, cache = row_keys(jax.random.key(0), rows), TARGET.start(rows, length + 1)
  state = initial_state(cache, None, keys, length, 0)
  return jax.jit(
    lambda: generate_plain(TARGET.extend, GREEDY, state, length, 1, adjusted_probs)
  )()


@pytest.mark.parametrize("name", DRAFTERS)
def test_greedy_outputs_are_plain_decoding_s(name):
  drafter = DRAFTERS[name]
  decoded, kinds = watch(lambda loop: decode(drafter, GREEDY, 2, 24, loop))
  np.testing.assert_array_equal(decoded.tokens, plain(2, 24).tokens)
  assert decoded.statistics.drafted.sum() > 0
  turns = [kind == "rest" for kind in kinds]
  assert sum(turns) > 1
  # What does not go on after a rest has drafted before them all.
  assert (turns == sorted(turns)) == (not drafter.resumes)


# ---- Samples. ----


def assert_samples_follow(drafter):
  sampling, length = Sampling(), 5
  decoded = jax.jit(lambda: decode(drafter, sampling, 20_000, length))()
  assert_follows(np.asarray(decoded.tokens), sequence_probs(TARGET, sampling, length))
  info = decoded.statistics
  assert 0 < info.accepted.sum() < info.drafted.sum()


@pytest.mark.parametrize("name", DRAFTERS)
def test_samples_follow_the_enumerated_distribution(name):
  """Chi-squared at level 0.001."""
  assert_samples_follow(DRAFTERS[name])


@dataclasses.dataclass(frozen=True)
class Forgetful(Drafter):
  """Hands everything on to another drafter but how many draws that takes."""

  drafter: Drafter

  tree = property(lambda self: self.drafter.tree)
  networks = property(lambda self: self.drafter.networks)

  def start(self, context):
    return self.drafter.start(context)

  def propose(self, *known):
    return self.drafter.propose(*known)

  def commit(self, *known):
    return self.drafter.commit(*known)


def test_draws_that_are_used_twice_are_refused_and_would_be_noticed(monkeypatch):
  """Beyond an array's end indices are clamped."""
  with pytest.raises(ValueError, match="Expected uniforms of 40 decisions"):
    assert_samples_follow(Forgetful(DRAFTERS["cascade"]))
  monkeypatch.setattr(cascade, "check_uniforms", lambda *_: None)
  with pytest.raises(AssertionError):
    assert_samples_follow(Forgetful(DRAFTERS["cascade"]))


# ---- Drafters that read a real target. ----

TARGET_NETWORK = network_for(tiny.config(2, 16, vocab_size=4))
PARALLEL = network_for(ParallelConfig(3, 16, 2, 8, 32, cross_attention=True))
OF_NETWORKS = {
  "layer skip": LayerSkip(("self_0", "cross_0", "mlp_0"), 3),
  "parallel": ParallelDraft(PARALLEL, Tree((0, 0, 1, 1, 3))),
}


def decode_by_networks(decoder, sampling, rows, room, seed):
  params = {}
  for i, (name, network) in enumerate(decoder.networks.items()):
    make = jax.jit(lambda key, network=network: initial_variables(network, key))
    drawn = make(jax.random.key(i))["params"]
    params[name] = jax.tree.map(lambda x: 2 * x, drawn)
  keys = row_keys(jax.random.key(seed), rows)
  inputs = jnp.array([[2, 3, 3, 1]])
  decode = lambda params: decoder.decode(params, inputs, keys, sampling, room, 1)
  return jax.jit(decode)(params)


@pytest.mark.parametrize("name", OF_NETWORKS)
def test_a_target_that_is_read_goes_on_by_itself(name):
  drafter = OF_NETWORKS[name]
  plain = PlainDecoder(TARGET_NETWORK)
  resting = SpeculativeDecoder(
    TARGET_NETWORK, drafter, RULES["traversal"], POLICIES[drafter.resumes]
  )
  expected, found = (
    decode_by_networks(decoder, GREEDY, 1, 24, 0) for decoder in (plain, resting)
  )
  np.testing.assert_array_equal(found.tokens, expected.tokens)
  samples = [
    decode_by_networks(decoder, Sampling(), 20_000, 5, seed)
    for seed, decoder in enumerate((plain, resting))
  ]
  assert samples[1].statistics.drafted.sum() > 0
  assert_alike(*(np.asarray(each.tokens) for each in samples))


def assert_alike(outputs, others, level=1e-3):
  """Chi-squared of two samples of one distribution, rare outputs pooled."""
  both = np.concatenate([outputs, others])
  _, kinds = np.unique(both, axis=0, return_inverse=True)
  counts = [np.bincount(x, minlength=kinds.max() + 1) for x in np.split(kinds, 2)]
  table = np.array(counts)
  rare = table.sum(axis=0) < 20
  table = np.column_stack([table[:, ~rare], table[:, rare].sum(axis=1)])
  table = table[:, table.sum(axis=0) > 0]
  assert table.shape[1] > 20
  assert stats.chi2_contingency(table).pvalue > level
