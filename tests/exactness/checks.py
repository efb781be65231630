"""Short tests of exactness, by name; the faults of `traps` make the tests fail."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np

from specdec_t5x.contrib.truncation import Truncation
from specdec_t5x.core.distributions import GREEDY, LEVELS, Sampling
from specdec_t5x.core.rules.token import Token
from specdec_t5x.core.tree import Tree, chain
from specdec_t5x.core.types import Proposal
from specdec_t5x.decoding.decoder import Decoder
from specdec_t5x.decoding.loop import generate
from specdec_t5x.decoding.state import initial_state, row_keys
from specdec_t5x.drafters.copy import Copy
from specdec_t5x.drafters.draft_model import DraftModel
from specdec_t5x.drafters.tree_draft import delayed
from specdec_t5x.network.transformer import Transformer
from tests import networks
from tests.drafters.test_cascade import test_a_perfect_hierarchy_accepts_full_windows
from tests.exactness import (
  distributions,
  test_cascade,
  test_networks,
  test_shared_length,
)
from tests.exactness.driving import Loop, assert_the_loop_is_exact
from tests.exactness.planting import jit
from tests.exactness.test_loop import APART, SMALL_DRAFT, SMALL_TARGET, TURNS
from tests.exactness.test_rules import assert_exact, setting_of
from tests.hash_model import HashModel, SparseHash, speculation
from tests.t5x_bridge import tiny

PURE = Sampling()
FEWER = Sampling(1.0, top_k=2)


def loop(draft, *setting, target=SMALL_TARGET, policy=None, sampling=PURE):
  """Returns a check of the compiled loop; `setting` is rule, tree, room, siblings."""
  compiled_loop = Loop(target, draft, *setting, policy=policy)
  return partial(assert_the_loop_is_exact, compiled_loop, sampling)


def on_encoder(rule, draft):
  test_networks.assert_a_reader_is_exact(FEWER, rule, draft)


def exact_rule(name, tree):
  """Returns a check of a compiled rule."""
  target, draft = (distributions.sampled(seed, 3, PURE) for seed in (1, 2))
  return partial(assert_exact, setting_of((name, tree, 3), target, draft), name)


# Outputs repeat no token at the places that a kept draft's entries move to.
ENDLESS = HashModel(seed=9, vocab_size=5, eos_bias=-30.0)
# Each draw reads four levels of uniforms. The high EOS bias lets outputs end.
WIDE_TARGET, WIDE_DRAFT = (HashModel(x, vocab_size=600, eos_bias=4.5) for x in (5, 6))
FEW = Sampling(1.0, top_k=3)
# A tree that continues from its second node.
SECOND = Tree((0, 0, 2))
CANDIDATES = delayed(0, 2, 2)

CHECKS = {
  "token_loop": loop(SMALL_DRAFT, "token", chain(2), 4),
  # The draft drops the least likely of three tokens before each draw.
  "sparse_loop": loop(SparseHash(SMALL_DRAFT, Truncation(2)), "token", chain(2), 4),
  # There is room for a full draft and further drafts; two tokens keep the paths few.
  "candidates_loop": loop(
    SMALL_DRAFT, "kseq", CANDIDATES, 5, sampling=Sampling(1.0, top_k=2)
  ),
  "siblings_loop": loop(SMALL_DRAFT, "recursive", delayed(0, 3, 1), 3, "distinct"),
  # Heads draft again after an accepted draft.
  "heads_chain": loop(APART, "token", chain(2), 5),
  "heads_tree": loop(APART, "recursive", SECOND, 4, "distinct"),
  # More tokens than a single uniform of a tree of eight branches can tell apart.
  "wide_loop": loop(WIDE_DRAFT, "token", chain(1), 3, target=WIDE_TARGET, sampling=FEW),
  # A perfect pair continues from the moved entries of a kept draft.
  "moved_entries": loop(
    ENDLESS, "kseq", delayed(0, 2, 3), 8, target=ENDLESS, sampling=GREEDY
  ),
  # Drafts, plain turns and drafts again.
  "turns_loop": loop(SMALL_DRAFT, "token", chain(3), 6, policy=TURNS),
  "token_rule": exact_rule("token", chain(2)),
  "block_rule": exact_rule("block", chain(2)),
  "kseq_rule": exact_rule("kseq", CANDIDATES),
  "recursive_rule": exact_rule("recursive", CANDIDATES),
  "traversal_rule": exact_rule("traversal", CANDIDATES),
  # A real network drafts for itself on the target's cache.
  "skipping_loop": partial(test_networks.assert_a_reduced_target_is_exact, FEWER),
  # Fixed windows, some accepted in full; windows that end at a correction; and a
  # perfect hierarchy, where every window is accepted in full.
  "windows_fixed": partial(
    test_cascade.assert_exact, test_cascade.FIXED, test_cascade.TOP_K
  ),
  "windows_flushed": partial(
    test_cascade.assert_exact, test_cascade.FLUSHED, test_cascade.TOP_K
  ),
  "perfect_hierarchy": partial(
    test_a_perfect_hierarchy_accepts_full_windows, GREEDY, "fixed"
  ),
  # Real drafts on the target's encoder, with two rows. EAGLE's layer is compared with
  # EAGLE's unrolled steps.
  "encoder_shared": partial(on_encoder, "token", "draft"),
  "trimmed_draft": partial(on_encoder, "block", "trimmed"),
  # Two rows share a draft length and rest together.
  "shared_length": partial(
    test_shared_length.assert_both_rows_are_exact, test_shared_length.SHORT
  ),
}


def check(function):
  """Registers a function as a check under its name."""
  CHECKS[function.__name__] = function
  return function


@check
def eagle_loop():
  """EAGLE's layer on a real target matches its unrolled steps, traced afresh."""
  test_networks.eagle_logits.cache_clear()
  try:
    on_encoder("block", "eagle")
  finally:
    test_networks.eagle_logits.cache_clear()


def decode(target, draft, sampling, gamma, length, rows=32):
  keys = row_keys(jax.random.key(0), rows)
  drafter = DraftModel(draft, gamma)
  spec, state = speculation(target, drafter, Token(), sampling, keys, length)
  return jit(lambda: generate(spec, state))()


@check
def coupled_loop():
  """Drafts change no output, places differ in noise, a perfect draft is accepted."""
  sampling = Sampling(coupled=True)
  gamma = 3
  length = 12
  rows = 32
  target = HashModel(seed=4, vocab_size=5, eos_bias=-30.0)
  keys = row_keys(jax.random.key(0), rows)
  ctx, state = speculation(target, None, Token(), sampling, keys, length)
  plain = generate(ctx, state)
  for draft in (target, HashModel(seed=5, vocab_size=5)):
    decoded = decode(target, draft, sampling, gamma, length, rows)
    np.testing.assert_array_equal(decoded.tokens, plain.tokens)
    if draft is target:
      calls = decoded.statistics.target_calls
      np.testing.assert_array_equal(calls, length // (gamma + 1))
  places = state.uniforms_of_places(length).reshape(-1, LEVELS)
  assert len(np.unique(places, axis=0)) == rows * length


@check
def perfect_draft():
  """A target that drafts for itself accepts full blocks and adds bonus tokens."""
  gamma = 3
  length = 12
  sampling = Sampling(0.8, top_p=0.7)
  target = HashModel(seed=4, vocab_size=5, eos_bias=-30.0)
  info = decode(target, target, sampling, gamma, length).statistics
  np.testing.assert_array_equal(info.target_calls, length // (gamma + 1))
  np.testing.assert_array_equal(info.accepted, info.drafted)


@check
def counts():
  """The count of emitted tokens equals the length of the output."""
  target, draft = (HashModel(seed, vocab_size=3, eos_bias=-2.0) for seed in (3, 4))
  decoded = decode(target, draft, PURE, 5, 7)
  is_end = np.asarray(decoded.tokens) == 1
  lengths = np.where(is_end.any(1), is_end.argmax(1) + 1, 7)
  np.testing.assert_array_equal(decoded.statistics.emitted, lengths)


@check
def draws():
  """Iterations and rows draw different uniforms."""
  keys = row_keys(jax.random.key(0), 3)
  state = initial_state(SMALL_TARGET.start(3, 9), None, keys, 4, 2)
  later = state.replace(iteration=state.iteration + 1)
  assert np.unique([state.uniforms(5), later.uniforms(5)]).size == 30 * LEVELS


@check
def probs_apart_by_rounding():
  """The recovered token follows p if p - q has no mass and a draft is rejected."""
  p = jnp.broadcast_to(jnp.array([0.5, 0.3, 0.2]), (3, 2, 3))
  tokens = jnp.zeros((3, 1), jnp.int32)
  proposal = Proposal.chain(tokens, p[:, :1] * (1 + 1e-5), 1)
  just_too_much = jnp.full(3, 1 - 1e-6)
  quantiles = jnp.array([0.4, 0.7, 0.9])
  uniforms = jnp.stack([just_too_much, quantiles], axis=1)[..., None]
  verdict = Token().verify(p, proposal, uniforms)
  np.testing.assert_array_equal(verdict.last, 0)
  np.testing.assert_array_equal(verdict.next_token, [0, 1, 2])


@check
def copying():
  """The copy drafter proposes the tokens after the last token's match in the source."""
  drafter = Copy(gamma=2, match=1)
  keys = row_keys(jax.random.key(0), 1)
  source = jnp.array([[5, 6, 7, 1]])
  spec, state = speculation(
    SMALL_TARGET, drafter, Token(), PURE, keys, 4, source=source
  )
  state = state.replace(sequences=jnp.array([[0, 5, 0, 0]]), lengths=jnp.array([2]))
  proposal, _ = drafter.propose(spec, state, jnp.zeros((1, 2, 1)))
  np.testing.assert_array_equal(proposal.num_valid, 2)
  np.testing.assert_array_equal(proposal.tokens, [[6, 7]])


@check
def transformers():
  """Greedy speculation with real caches gives the plain loop's tokens."""
  module = Transformer(tiny.config(1, 16, 17))
  inputs = jnp.array([[5, 6, 7, 1], [9, 3, 1, 0]])
  drawn = (networks.initialize(module, inputs, seed)["params"] for seed in (0, 1))
  target, draft = (jax.tree.map(lambda x: 3 * x, params) for params in drawn)
  params = {"target": target, "draft": draft}
  keys = row_keys(jax.random.key(0), 2)
  found, expected = (
    jit(lambda d=d: d.decode(params, inputs, keys, GREEDY, 12, 1).tokens)()
    for d in (Decoder(module, DraftModel(module, 3)), Decoder(module))
  )
  np.testing.assert_array_equal(found, expected)
