"""Short tests of exactness, which the faults of `traps` must fail."""

import jax
import jax.numpy as jnp
import numpy as np

from specdec_t5x.core.distributions import LEVELS, Sampling
from specdec_t5x.core.sparse import Truncation
from specdec_t5x.core.token import Token
from specdec_t5x.core.tree import Tree, chain, delayed
from specdec_t5x.core.types import Proposal
from specdec_t5x.decoding.baseline import generate_plain
from specdec_t5x.decoding.decoders import PlainDecoder, SpeculativeDecoder
from specdec_t5x.decoding.generate import generate
from specdec_t5x.decoding.state import initial_state, row_keys
from specdec_t5x.drafters.copy import Copy
from specdec_t5x.drafters.draft_model import DraftModel
from specdec_t5x.native.distributions import adjusted_probs
from specdec_t5x.network.transformer import Transformer
from specdec_t5x.policies import Confidence
from tests import networks
from tests.drafters.test_cascade import test_all_agree
from tests.exactness import (
  distributions,
  test_adaptive,
  test_budget,
  test_cascade,
  test_layer_skip,
  test_other_vocabulary,
  test_shared_encoder,
  tree_steps,
  trees,
)
from tests.exactness.planting import jit
from tests.exactness.test_adaptive import EXIT, SURE, TURNS
from tests.exactness.test_heads import APART, BIASED, PATH
from tests.exactness.test_loop import (
  FEW,
  SMALL_DRAFT,
  SMALL_TARGET,
  TARGET,
  WIDE_DRAFT,
  WIDE_TARGET,
  assert_the_loop_is_exact,
)
from tests.exactness.test_rules import assert_exact, setting_of
from tests.hash_model import HashModel, SparseHash, speculation
from tests.t5x_bridge import tiny


def token_loop():
  setting = (SMALL_TARGET, SMALL_DRAFT, "token", chain(2), 4)
  assert_the_loop_is_exact(setting, Sampling())


def sparse_loop():
  """A draft that drops the least likely token of three before it draws."""
  draft = SparseHash(SMALL_DRAFT, Truncation(2))
  setting = (SMALL_TARGET, draft, "token", chain(2), 4)
  assert_the_loop_is_exact(setting, Sampling())


def other_loop():
  """A draft of another vocabulary, whose tokens for one of the target's are two."""
  draft = test_other_vocabulary.DRAFT
  setting = (TARGET, draft, "token", chain(2), 3)
  assert_the_loop_is_exact(setting, Sampling())


def candidates_loop():
  # Room for a whole draft and drafts after it, and few tokens, so few paths.
  setting = (SMALL_TARGET, SMALL_DRAFT, "kseq", delayed(0, 2, 2), 5)
  assert_the_loop_is_exact(setting, Sampling(1.0, top_k=2))


def siblings_loop():
  """Siblings that are drawn without replacement."""
  setting = (SMALL_TARGET, SMALL_DRAFT, "recursive", delayed(0, 3, 1), 3, "distinct")
  assert_the_loop_is_exact(setting, Sampling())


def heads_chain():
  """Heads that draft again after a draft of theirs was accepted."""
  setting = (SMALL_TARGET, APART, "token", chain(2), 5, "independent")
  assert_the_loop_is_exact(setting, Sampling())


def heads_tree():
  """Heads that read the path, on a tree that goes on from its second node."""
  setting = (SMALL_TARGET, PATH, "recursive", Tree((0, 0, 2)), 4, "distinct")
  assert_the_loop_is_exact(setting, Sampling())


def biased_chain():
  """Heads that know the token before theirs alone."""
  setting = (SMALL_TARGET, BIASED, "block", chain(2), 4, "independent")
  assert_the_loop_is_exact(setting, Sampling())


def biased_tree():
  """The same, on a tree that goes on from its second node."""
  setting = (SMALL_TARGET, BIASED, "recursive", Tree((0, 0, 2)), 4, "distinct")
  assert_the_loop_is_exact(setting, Sampling())


def small_trees():
  """Every tree of up to three nodes."""
  every = [parents for size in (1, 2, 3) for parents in trees.canonical(size)]
  tree_steps.assert_exact_on(every, "recursive", "independent", Sampling())


def wide_loop():
  """More tokens than one uniform of a tree of eight branches tells apart."""
  assert_the_loop_is_exact((WIDE_TARGET, WIDE_DRAFT, "token", chain(1), 3), FEW)


def moved_entries():
  """One kept draft of a perfect pair goes on where its entries were moved to."""
  # Its output has no token twice where the entries land.
  target = HashModel(seed=9, vocab_size=5, eos_bias=-30.0)
  setting = (target, target, "kseq", delayed(0, 2, 3), 8)
  assert_the_loop_is_exact(setting, Sampling(0.0))


def adaptive_loop():
  setting = (SMALL_TARGET, SMALL_DRAFT, "token", chain(3), 5, "independent", SURE)
  assert_the_loop_is_exact(setting, Sampling())


def turns_loop():
  """Drafts, plain turns and drafts again."""
  setting = (SMALL_TARGET, SMALL_DRAFT, "token", chain(3), 6, "independent", TURNS)
  assert_the_loop_is_exact(setting, Sampling())


def exit_loop():
  """Drafts that end after a token of little probability."""
  setting = (SMALL_TARGET, SMALL_DRAFT, "token", chain(3), 5, "independent", EXIT)
  assert_the_loop_is_exact(setting, Sampling())


def skipping_loop():
  """A real network that drafts for itself, on its own cache."""
  test_layer_skip.assert_the_loop_is_exact(Sampling())


def windows_fixed():
  """Windows of a fixed length, some of which are accepted whole."""
  test_cascade.assert_exact(test_cascade.FIXED, test_cascade.TOP_K)


def windows_flushed():
  """Windows that a correction ends."""
  test_cascade.assert_exact(test_cascade.FLUSHED, test_cascade.TOP_K)


def perfect_hierarchy():
  """The target as both of its drafts: whole windows, a call of each level a time."""
  test_all_agree(Sampling(0.0), "fixed")


def encoder_shared():
  """A real draft on the encoder of its target, of two rows."""
  test_shared_encoder.assert_the_loop_is_exact(Sampling())


def trimmed_draft():
  """A real draft that says two tokens alone."""
  test_shared_encoder.assert_the_loop_is_exact(Sampling(), "block", "trimmed")


def eagle_loop():
  """EAGLE's layer on a real target, beside its unrolled steps, made anew."""
  test_shared_encoder.eagle_logits.cache_clear()
  try:
    test_shared_encoder.assert_the_loop_is_exact(Sampling(), "block", "eagle")
  finally:
    test_shared_encoder.eagle_logits.cache_clear()


def eagle_tree():
  """EAGLE's tree, of whose nodes each is read after its own path."""
  test_shared_encoder.assert_the_loop_is_exact(Sampling(), "traversal", "eagle tree")


def shared_length():
  """Two rows that share the length of their drafts."""
  test_adaptive.assert_rows_keep_their_probs(*test_adaptive.two_rows())


def budget_loop():
  """Two rows that share a budget, their blocks packed."""
  test_budget.assert_both_rows_are_exact(test_budget.SIZES[2], "token")


def heads_that_ask():
  """Heads whose chains end where their policy says."""
  policy = Confidence(0.5)
  setting = (SMALL_TARGET, APART, "token", chain(2), 5, "independent", policy)
  assert_the_loop_is_exact(setting, Sampling())


def sure_rows():
  """Two rows that share a budget, by what heads say of their tokens."""
  test_budget.assert_sure_rows_are_exact("token")


def coupled_loop():
  """Drafts change no output, noise is every place's own, and a perfect draft stands."""
  sampling, gamma, length, rows = Sampling(coupled=True), 3, 12, 32
  target = HashModel(seed=4, vocab_size=5, eos_bias=-30.0)
  keys, cache = row_keys(jax.random.key(0), rows), target.start(rows, length + 1)
  state = initial_state(cache, None, keys, length, 0)
  plain = generate_plain(target.extend, sampling, state, length, 1, adjusted_probs)
  for draft in (target, HashModel(seed=5, vocab_size=5)):
    decoded = decode(target, draft, sampling, gamma, length, rows)
    np.testing.assert_array_equal(decoded.tokens, plain.tokens)
    if draft is target:
      calls = decoded.statistics.target_calls
      np.testing.assert_array_equal(calls, length // (gamma + 1))
  places = state.uniforms_of_places(length).reshape(-1, LEVELS)
  assert len(np.unique(places, axis=0)) == rows * length


def exact_rule(name, tree):
  def check():
    target, draft = (distributions.sampled(seed, 3, Sampling()) for seed in (1, 2))
    assert_exact(setting_of((name, tree, 3), target, draft), name)

  check.__name__ = f"{name}_rule"
  return check


def perfect_draft():
  """The target as its own draft: whole blocks, and a bonus token each."""
  gamma, length, sampling = 3, 12, Sampling(0.8, top_p=0.7)
  target = HashModel(seed=4, vocab_size=5, eos_bias=-30.0)
  info = decode(target, target, sampling, gamma, length).statistics
  np.testing.assert_array_equal(info.target_calls, length // (gamma + 1))
  np.testing.assert_array_equal(info.accepted, info.drafted)


def counts():
  """What is counted as emitted is what is put out."""
  target, draft = (HashModel(seed, vocab_size=3, eos_bias=-2.0) for seed in (3, 4))
  decoded = decode(target, draft, Sampling(), 5, 7)
  is_end = np.asarray(decoded.tokens) == 1
  lengths = np.where(is_end.any(1), is_end.argmax(1) + 1, 7)
  np.testing.assert_array_equal(decoded.statistics.emitted, lengths)


def draws():
  """No two iterations, and no two rows, draw the same."""
  keys = row_keys(jax.random.key(0), 3)
  state = initial_state(SMALL_TARGET.start(3, 9), None, keys, 4, 2)
  later = state.replace(iteration=state.iteration + 1)
  assert np.unique([state.uniforms(5), later.uniforms(5)]).size == 30 * LEVELS


def probs_apart_by_rounding():
  """Where p - q has no mass and a draft is rejected, p is the recovered token's
  distribution."""
  p = jnp.broadcast_to(jnp.array([0.5, 0.3, 0.2]), (3, 2, 3))
  tokens = jnp.zeros((3, 1), jnp.int32)
  proposal = Proposal.chain(tokens, p[:, :1] * (1 + 1e-5), 1)
  just_too_much, quantiles = jnp.full(3, 1 - 1e-6), jnp.array([0.4, 0.7, 0.9])
  uniforms = jnp.stack([just_too_much, quantiles], axis=1)[..., None]
  verdict = Token().verify(p, proposal, uniforms)
  np.testing.assert_array_equal(verdict.last, 0)
  np.testing.assert_array_equal(verdict.next_token, [0, 1, 2])


def copying():
  """What follows the last token in the encoder's input is drafted."""
  drafter, keys = Copy(gamma=2, match=1), row_keys(jax.random.key(0), 1)
  known, source = (SMALL_TARGET, drafter, Token(), Sampling(), keys, 4), [5, 6, 7, 1]
  spec, state = speculation(*known, source=jnp.array([source]))
  state = state.replace(sequences=jnp.array([[0, 5, 0, 0]]), lengths=jnp.array([2]))
  proposal, _ = drafter.propose(spec.context, state, jnp.zeros((1, 2, 1)))
  np.testing.assert_array_equal(proposal.num_valid, 2)
  np.testing.assert_array_equal(proposal.tokens, [[6, 7]])


def transformers():
  """Greedy speculation with real caches gives the plain loop's tokens."""
  module, inputs = (
    Transformer(tiny.config(1, 16, 17)),
    jnp.array([[5, 6, 7, 1], [9, 3, 1, 0]]),
  )
  params = {
    name: jax.tree.map(
      lambda x: 3 * x, networks.initialize(module, inputs, seed)["params"]
    )
    for seed, name in enumerate(("target", "draft"))
  }
  decoders = SpeculativeDecoder(module, DraftModel(module, 3)), PlainDecoder(module)
  keys, greedy = row_keys(jax.random.key(0), 2), Sampling(0.0)
  found, expected = (
    jit(lambda d=d: d.decode(params, inputs, keys, greedy, 12, 1).tokens)()
    for d in decoders
  )
  np.testing.assert_array_equal(found, expected)


def decode(target, draft, sampling, gamma, length, rows=32):
  keys = row_keys(jax.random.key(0), rows)
  drafter = DraftModel(draft, gamma)
  spec, state = speculation(target, drafter, Token(), sampling, keys, length)
  return jit(lambda: generate(spec, state))()


TOKEN_RULE, BLOCK_RULE = (exact_rule(name, chain(2)) for name in ("token", "block"))
KSEQ_RULE, RECURSIVE_RULE, TRAVERSAL_RULE = (
  exact_rule(name, delayed(0, 2, 2)) for name in ("kseq", "recursive", "traversal")
)
