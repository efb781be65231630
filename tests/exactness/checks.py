"""What the planted traps of `test_mutations` have to fail: short tests of exactness."""

import jax
import jax.numpy as jnp
import numpy as np

from specdec_t5x.core.distributions import LEVELS, Sampling
from specdec_t5x.core.token import TokenVerification
from specdec_t5x.core.types import Proposal
from specdec_t5x.decoding import step
from specdec_t5x.decoding.baseline import generate_plain
from specdec_t5x.decoding.generate import generate
from specdec_t5x.decoding.state import initial_state, row_keys
from specdec_t5x.drafters.copy import CopyDraft
from specdec_t5x.drafters.draft_model import DraftModel
from specdec_t5x.network.config import T5Config
from specdec_t5x.network.transformer import Transformer
from tests import networks
from tests.exactness import laws
from tests.exactness.test_adaptive import SURE
from tests.exactness.test_loop import (
  FEW,
  SMALL_DRAFT,
  SMALL_TARGET,
  WIDE_DRAFT,
  WIDE_TARGET,
  assert_the_loop_is_exact,
)
from tests.exactness.test_rules import assert_exact, setting_of
from tests.hash_model import HashModel


def token_loop():
  setting = (SMALL_TARGET, SMALL_DRAFT, "token", 2, 4, 0)
  assert_the_loop_is_exact(setting, Sampling())


def candidates_loop():
  # Room for a whole draft and drafts after it, and few tokens, so few paths.
  target, draft = (HashModel(seed, vocab_size=4) for seed in (2, 12))
  setting = (target, draft, "kseq", 2, 5, 2)
  assert_the_loop_is_exact(setting, Sampling(1.0, top_k=2))


def wide_loop():
  """More tokens than one uniform of a tree of eight branches tells apart."""
  assert_the_loop_is_exact((WIDE_TARGET, WIDE_DRAFT, "token", 1, 3, 0), FEW)


def moved_entries():
  """One kept draft of a perfect pair goes on where its entries were moved to."""
  target = HashModel(seed=1, vocab_size=5, eos_bias=-30.0)
  assert_the_loop_is_exact((target, target, "kseq", 3, 8, 2), Sampling(0.0))


def adaptive_loop():
  setting = (SMALL_TARGET, SMALL_DRAFT, "token", 3, 5, 0, SURE)
  assert_the_loop_is_exact(setting, Sampling())


def exact_rule(name, candidates=0):
  def check():
    target, draft = (laws.sampled(seed, 3, Sampling()) for seed in (1, 2))
    assert_exact(setting_of((name, 2, 3, candidates), target, draft), name)

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


def laws_apart_by_rounding():
  """Where p - q has no mass and a draft is rejected, p is the recovered token's law."""
  p = jnp.broadcast_to(jnp.array([0.5, 0.3, 0.2]), (3, 2, 3))
  proposal = Proposal(
    jnp.zeros((3, 1), jnp.int32), p[:, :1] * (1 + 1e-5), jnp.ones(3, jnp.int32)
  )
  just_too_much, quantiles = jnp.full(3, 1 - 1e-6), jnp.array([0.4, 0.7, 0.9])
  uniforms = jnp.stack([just_too_much, quantiles], axis=1)[..., None]
  verdict = TokenVerification().verify(p, proposal, uniforms)
  np.testing.assert_array_equal(verdict.num_accepted, 0)
  np.testing.assert_array_equal(verdict.next_token, [0, 1, 2])


def copying():
  """What follows the last token in the encoder's input is drafted."""
  drafter = CopyDraft(gamma=2, vocab_size=9, shortest_match=1)
  inputs, output = jnp.array([[5, 6, 7, 1]]), jnp.array([[0, 5, 0, 0]])
  proposal, _ = drafter.propose(inputs, output, jnp.array([2]), jnp.zeros((1, 2, 1)))
  np.testing.assert_array_equal(proposal.num_valid, 2)
  np.testing.assert_array_equal(proposal.tokens, [[6, 7]])


def transformers():
  """Greedy speculation with real caches gives the plain loop's tokens."""
  config = T5Config(
    vocab_size=17,
    emb_dim=16,
    num_heads=2,
    head_dim=8,
    mlp_dim=24,
    num_encoder_layers=1,
    num_decoder_layers=1,
  )
  module, inputs = Transformer(config), jnp.array([[5, 6, 7, 1], [9, 3, 1, 0]])
  params = [
    jax.tree.map(lambda x: 3 * x, networks.initialize(module, inputs, seed)["params"])
    for seed in (0, 1)
  ]
  (extend, first), (draft, draft_first) = (
    networks.start(module, p, inputs, 20) for p in params
  )
  keys, greedy = row_keys(jax.random.key(0), 2), Sampling(0.0)
  state = initial_state(first, draft_first, keys, 12, 3)
  drafter = DraftModel(draft, 3, greedy)
  spec = step.Speculation(extend, drafter, TokenVerification(), greedy, 3, 12, 1)
  tokens = jax.jit(lambda: generate(spec, state).tokens)()
  plain = initial_state(first, None, keys, 12, 0)
  expected = jax.jit(lambda: generate_plain(extend, greedy, plain, 12, 1).tokens)()
  np.testing.assert_array_equal(tokens, expected)


def decode(target, draft, sampling, gamma, length, rows=32):
  spec = step.Speculation(
    target.extend,
    DraftModel(draft.extend, gamma, sampling),
    TokenVerification(),
    sampling,
    gamma,
    length,
    1,
  )
  slots = length + gamma + 1
  keys = row_keys(jax.random.key(0), rows)
  caches = target.start(rows, slots), draft.start(rows, slots)
  return jax.jit(lambda: generate(spec, initial_state(*caches, keys, length, gamma)))()


TOKEN_RULE, BLOCK_RULE = exact_rule("token"), exact_rule("block")
KSEQ_RULE, RECURSIVE_RULE = exact_rule("kseq", 2), exact_rule("recursive", 2)
CHECKS = [
  token_loop,
  candidates_loop,
  wide_loop,
  moved_entries,
  adaptive_loop,
  TOKEN_RULE,
  BLOCK_RULE,
  KSEQ_RULE,
  RECURSIVE_RULE,
  perfect_draft,
  counts,
  draws,
  laws_apart_by_rounding,
  copying,
  transformers,
]
