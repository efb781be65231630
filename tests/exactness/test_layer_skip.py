"""Self-speculation is exact: a network drafts for itself in a reduced form.

The reduced network lacks some sublayers, or has weights of few bits. The target itself
may have rounded weights. The draft's distribution depends on the start of the draft:
the full network computes keys and values of tokens before the draft, and the reduced
network computes keys and values of drafted tokens.
"""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from specdec_t5x import prepared
from specdec_t5x.core.distributions import Sampling
from specdec_t5x.core.rules import RULES
from specdec_t5x.decoding.decoder import Decoder
from specdec_t5x.decoding.policies import CostAware, Fixed
from specdec_t5x.drafters.of_target import NAME, LayerSkip, Quantized
from specdec_t5x.network.functional import network_for, start_decoding, without_fn
from specdec_t5x.network.gemma import GemmaConfig
from tests import networks
from tests.exactness import lengths
from tests.exactness.distributions import adjusted
from tests.exactness.driving import assert_the_decoder_is_exact, logits_by_output
from tests.exactness.enumeration import Setting, decode, explore
from tests.exactness.oracles import JUDGES
from tests.t5x_bridge import tiny

pytestmark = pytest.mark.slow

SIZE = 4
ROOM = 4
GAMMA = 2
CONFIG = tiny.config(2, 16, vocab_size=SIZE)
TARGET = network_for(CONFIG)
INPUTS = jnp.array([[2, 3, 3, 1]])
SKIPPING = LayerSkip(("self_0", "cross_0", "mlp_0"), GAMMA)
# The target of this drafter has weights of 8 bits.
UNDER_8 = Quantized(4, 8, ("mlp_1",), gamma=GAMMA)
ROUNDED = network_for(dataclasses.replace(CONFIG, weights="int8"))
# The targets of these drafters are T5Gemmas with windows shorter than the outputs.
GEMMA_2 = GemmaConfig(
  **{"vocab_size": SIZE, "emb_dim": 16, "num_heads": 2, "head_dim": 8, "mlp_dim": 32},
  **{"num_encoder_layers": 1, "num_decoder_layers": 2, "window": 2, "query_scalar": 8},
)
GEMMA = dataclasses.replace(GEMMA_2, merged=False, attention_cap=2.0, logits_cap=3.0)
SKIPPING_2 = LayerSkip(("self_1", "mlp_0"), GAMMA)
IN_4 = Quantized(4, 8, ("self_0",), gamma=GAMMA)
OF_GEMMA = {SKIPPING_2: network_for(GEMMA_2), IN_4: network_for(GEMMA)}
DRAFTERS = {
  "skipping": SKIPPING,
  "8 bits": Quantized(8, gamma=GAMMA),
  "4 bits": Quantized(4, 8, ("self_1",), ("mlp_0",), GAMMA),
  "rounded target": UNDER_8,
  "gemma 2": SKIPPING_2,
  "gemma": IN_4,
}
WHOLE = Fixed()
# Policies that draft two tokens, and fewer or no tokens after a failed draft.
SHORTER = CostAware((1.0, 1.01, 1.3), 0.8, prior_weight=1.0, by_row=True)
RESTING = CostAware((1.0, 1.75, 2.3), 0.8, prior_weight=1.0, by_row=True)


@functools.cache
def params(network=TARGET):
  """Returns parameters with distributions that are neither flat nor certain."""
  found = networks.initialize(network, INPUTS, seed=3)["params"]
  if network.config.is_gemma:  # The embedding is tied to the logits, unscaled.
    found["token_embedder"]["embedding"] *= 0.2
  return jax.tree.map(lambda x: 1.7 * x, found)


def target_of(drafter):
  return ROUNDED if drafter is UNDER_8 else OF_GEMMA.get(drafter, TARGET)


@functools.cache
def all_params(drafter):
  """Returns the target's parameters and the drafter's derived parameters.

  The drafter derives parameters from the unrounded parameters.
  """
  network = target_of(drafter)
  unrounded = params(network if drafter in OF_GEMMA else TARGET)
  made = {name: make(unrounded) for name, make in drafter.derive(network).items()}
  target = prepared.in_weights(network, unrounded) if network is ROUNDED else unrounded
  return {"target": target, **made}


@functools.cache
def logits(drafter):
  """Returns logits [V] after each output, by the number of tokens read in full.

  The full network reads the first tokens of an output. The reduced network reads the
  rest, starting with the last known token; at ROOM no tokens remain.
  """

  @jax.jit
  def split(params_by_name, at, read):
    network = target_of(drafter)
    target_params = params_by_name["target"]
    target, cache = start_decoding(network, target_params, INPUTS, 2 * ROOM, len(read))
    reduced_extend = without_fn(network, target_params)(
      drafter.skip, params_by_name.get(NAME)
    )
    target_logits, _, cache = target(cache, read)
    # Tokens behind the output do not change the logits before them.
    unread = jnp.roll(read, -at, axis=1)
    reduced_logits, _, _ = reduced_extend(cache.at(jnp.full(len(read), at)), unread)
    is_target_s = (jnp.arange(ROOM) < at)[:, None]
    return jnp.where(is_target_s, target_logits, jnp.roll(reduced_logits, at, axis=1))

  split = functools.partial(split, all_params(drafter))
  return [
    logits_by_output(functools.partial(split, at), SIZE, ROOM) for at in range(ROOM + 1)
  ]


def distributions(drafter, sampling):
  """Returns the distributions of target and draft as functions of their prefixes."""
  found = logits(drafter)

  def target(output):
    return adjusted(found[ROOM][output], sampling)

  # The draft reads the last known token.
  def draft(known):
    return adjusted(found[len(known[0])][known[0] + known[1]], sampling)

  return functools.cache(target), functools.cache(draft)


def paths_of(drafter, sampling, rule, policy):
  """Returns the setting and all paths of whole decodes, by the oracle."""
  target, draft = distributions(drafter, sampling)
  judge = JUDGES["greedy" if sampling.greedy else rule]
  siblings = "likeliest" if sampling.greedy else "independent"
  setting = Setting(
    target,
    draft,
    judge,
    tuple(range(GAMMA)),
    ROOM,
    siblings=siblings,
    given=lambda *known: known,
  )
  if policy == WHOLE:

    def run(world):
      return decode(world, setting)
  else:

    def run(world):
      return lengths.decode(world, setting, policy)

  return setting, list(explore(run))


def assert_the_loop_is_exact(sampling, rule="token", policy=WHOLE, drafter=SKIPPING):
  decoder = Decoder(target_of(drafter), drafter, RULES[rule], policy)
  setting, paths = paths_of(drafter, sampling, rule, policy)
  params = all_params(drafter)
  assert_the_decoder_is_exact(decoder, params, INPUTS, sampling, [setting], [paths])


PLAIN = Sampling()
TOP_K = Sampling(1.0, top_k=3)
TOP_P = Sampling(0.8, top_p=0.8)
# `checks` has the plainest loop.
LOOPS = [
  ("skipping", RESTING, TOP_K, "block"),
  ("4 bits", SHORTER, PLAIN, "token"),
  # 8 bits would fail here. The block rule's h_i is a ratio of differences of p and q,
  # so an error of 1e-7 in p or q moves h_i by 1e-4 if q is nearly p. h_i decides only
  # if all longer prefixes fail, with a probability of the differences' size, so outputs
  # are off by 1e-7. The enumeration weighs an edge of h_i as if h_i always decided.
  ("4 bits", WHOLE, TOP_P, "block"),
  ("rounded target", WHOLE, PLAIN, "block"),
  ("gemma 2", WHOLE, TOP_K, "token"),
  ("gemma", WHOLE, TOP_K, "token"),
]


@pytest.mark.parametrize(("name", "policy", "sampling", "rule"), LOOPS)
def test_the_loop_keeps_the_target_s_distribution(name, policy, sampling, rule):
  assert_the_loop_is_exact(sampling, rule, policy, DRAFTERS[name])


def test_a_rounded_target_has_a_different_distribution():
  """The loops above would otherwise test the unrounded target again."""
  (target, _), (small, draft) = (
    distributions(drafter, Sampling()) for drafter in (SKIPPING, UNDER_8)
  )
  assert abs(target((2, 3)) - small((2, 3))).sum() > 1e-3
  assert abs(small((2, 3)) - draft(((2, 3), ()))).sum() > 0.01


def test_drafts_are_accepted_rejected_and_of_several_lengths():
  found = {}
  for policy in (WHOLE, SHORTER, RESTING):
    _, paths = paths_of(SKIPPING, Sampling(), "token", policy)
    np.testing.assert_allclose(sum(path.probability for path in paths), 1)
    found[policy] = {tuple(lengths.turns(path, GAMMA)) for path in paths}
    assert {len(turns) for turns in found[policy]} == {1, 2, 3, 4}
  # A first draft that fails at once leaves room for two more tokens.
  assert {turns[:2] for turns in found[WHOLE]} >= {(2, 2), (2, 1)}
  assert (2, 2) not in {turns[:2] for turns in found[SHORTER]}
  assert (2, 0, 0) in {turns[:3] for turns in found[RESTING]}


@pytest.mark.parametrize("name", ["skipping", "4 bits"])
def test_the_draft_s_distribution_depends_on_the_start_of_the_draft(name):
  """The draft therefore reads the full network's keys."""
  found = logits(DRAFTERS[name])
  assert abs(found[1][2, 3] - found[0][2, 3]).max() > 0.01


def test_few_bits_change_the_draft_s_distribution():
  """The loops above would otherwise reject no token."""
  target, draft = distributions(DRAFTERS["4 bits"], Sampling())
  output = (2, 3)
  assert abs(target(output) - draft((output, ()))).sum() > 0.02
