"""Drafts that read the target's networks are exact, with real networks.

A reduced target drafts for itself: the target without some sublayers, or with weights
of few bits. The full network computes keys and values of tokens before the draft, and
the reduced network those of drafted tokens, so q depends on the start of the draft.

Other drafts read the target's encoder: a small decoder, a decoder trimmed to two
tokens, and EAGLE, with the distributions of EAGLE's unrolled steps in training. The
enumeration reads each input alone, without padding.
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
from specdec_t5x.core.tree import chain
from specdec_t5x.decoding.decoder import Decoder
from specdec_t5x.decoding.policies import CostAware, Fixed
from specdec_t5x.drafters.cascade import Cascade
from specdec_t5x.drafters.draft_model import DraftModel
from specdec_t5x.drafters.eagle import EagleDraft
from specdec_t5x.drafters.of_target import NAME, LayerSkip, Quantized
from specdec_t5x.network import hot
from specdec_t5x.network.functional import (
  extend_fn,
  network_for,
  start_decoding,
  without_fn,
)
from specdec_t5x.network.gemma import GemmaConfig
from specdec_t5x.network.heads import HeadsConfig
from specdec_t5x.training.objectives import forward
from tests import networks
from tests.exactness import cascades, lengths
from tests.exactness.cascades import Level
from tests.exactness.distributions import adjusted
from tests.exactness.driving import (
  assert_the_decoder_is_exact,
  every_output,
  logits_by_output,
)
from tests.exactness.enumeration import Setting, decode, explore
from tests.exactness.oracles import JUDGES
from tests.exactness.planting import jit
from tests.t5x_bridge import tiny

SIZE = 4
ROOM = 4
GAMMA = 2
CONFIG = tiny.config(2, 16, vocab_size=SIZE)
TARGET = network_for(CONFIG)
# Attention ignores the order of features, but not padding beside the features.
INPUTS = jnp.array([[2, 3, 3, 1], [3, 1, 0, 0]])
LENGTHS = (4, 2)
WHOLE = Fixed()
# Policies that draft two tokens, and fewer or no tokens after a failed draft.
SHORTER = CostAware((1.0, 1.01, 1.3), 0.8, prior_weight=1.0, by_row=True)
RESTING = CostAware((1.0, 1.75, 2.3), 0.8, prior_weight=1.0, by_row=True)
TOP_K = Sampling(1.0, top_k=3)
TOP_P = Sampling(0.8, top_p=0.8)


@functools.cache
def params(network=TARGET):
  """Returns parameters with distributions that are neither flat nor certain."""
  found = networks.initialize(network, INPUTS, seed=3)["params"]
  if getattr(network.config, "is_gemma", False):  # The logits are tied and unscaled.
    found["token_embedder"]["embedding"] *= 0.2
  return jax.tree.map(lambda x: 1.7 * x, found)


def setting_of(target, draft, sampling, rule, **given):
  """Returns the oracle's setting of a chain."""
  return Setting(
    target,
    draft,
    JUDGES["greedy" if sampling.greedy else rule],
    chain(GAMMA).parents,
    ROOM,
    siblings="likeliest" if sampling.greedy else "independent",
    **given,
  )


def paths_of(setting, policy=WHOLE):
  """Returns all paths of whole decodes, by the oracle."""

  def run(world):
    if policy == WHOLE:
      return decode(world, setting)
    return lengths.decode(world, [setting], policy)[0]

  return list(explore(run))


# ---- Reduced targets. ----

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
EIGHT_BITS = Quantized(8, gamma=GAMMA)
FOUR_BITS = Quantized(4, 8, ("self_1",), ("mlp_0",), GAMMA)


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
def reduced_logits(drafter):
  """Returns logits [V] after each output, by the number of tokens read in full.

  The full network reads the first tokens of an output. The reduced network reads the
  rest, starting with the last known token; at ROOM no tokens remain.
  """

  @jax.jit
  def split(params_by_name, at, read):
    network = target_of(drafter)
    target_params = params_by_name["target"]
    (cache,) = start_decoding(network, target_params, INPUTS[:1], 2 * ROOM, len(read))
    reduced_extend = without_fn(network, target_params)(
      drafter.skip, params_by_name.get(NAME)
    )
    target_logits, _, cache = extend_fn(network, target_params)(cache, read)
    # Tokens behind the output do not change the logits before them.
    unread = jnp.roll(read, -at, axis=1)
    found, _, _ = reduced_extend(cache.at(jnp.full(len(read), at)), unread)
    is_target_s = (jnp.arange(ROOM) < at)[:, None]
    return jnp.where(is_target_s, target_logits, jnp.roll(found, at, axis=1))

  split = functools.partial(split, all_params(drafter))
  return [
    logits_by_output(functools.partial(split, at), SIZE, ROOM) for at in range(ROOM + 1)
  ]


def distributions(drafter, sampling):
  """Returns the distributions of target and draft as functions of their prefixes."""
  found = reduced_logits(drafter)

  def target(output):
    return adjusted(found[ROOM][output], sampling)

  # The draft reads the last known token.
  def draft(known):
    return adjusted(found[len(known[0])][known[0] + known[1]], sampling)

  return functools.cache(target), functools.cache(draft)


def assert_a_reduced_target_is_exact(
  sampling, rule="token", policy=WHOLE, drafter=SKIPPING
):
  decoder = Decoder(target_of(drafter), drafter, RULES[rule], policy)
  both = distributions(drafter, sampling)
  setting = setting_of(*both, sampling, rule, given=lambda *known: known)
  known = all_params(drafter)
  paths = [paths_of(setting, policy)]
  assert_the_decoder_is_exact(decoder, known, INPUTS[:1], sampling, [setting], paths)


@pytest.mark.slow
@pytest.mark.parametrize(
  ("drafter", "policy", "sampling", "rule"),
  [
    (SKIPPING, RESTING, TOP_K, "block"),
    (FOUR_BITS, SHORTER, Sampling(), "token"),
    # 8 bits would fail here. The block rule's h_i is a ratio of differences of p and q,
    # so an error of 1e-7 in p or q moves h_i by 1e-4 if q is nearly p. h_i decides only
    # if all longer prefixes fail, with a probability of the differences' size, so
    # outputs are off by 1e-7. The enumeration weighs an edge of h_i as if h_i always
    # decided.
    (FOUR_BITS, WHOLE, TOP_P, "block"),
    (UNDER_8, WHOLE, Sampling(), "block"),
    (SKIPPING_2, WHOLE, TOP_K, "token"),
    (IN_4, WHOLE, TOP_K, "token"),
  ],
  ids=["skipping", "4 bits", "4 bits, block", "rounded target", "gemma 2", "gemma"],
)
def test_reduced_targets_keep_the_target_s_distribution(
  drafter, policy, sampling, rule
):
  """`checks` has the plainest loop."""
  assert_a_reduced_target_is_exact(sampling, rule, policy, drafter)


@pytest.mark.slow
def test_drafts_are_accepted_rejected_and_of_several_lengths():
  found = {}
  both = distributions(SKIPPING, Sampling())
  setting = setting_of(*both, Sampling(), "token", given=lambda *known: known)
  for policy in (WHOLE, SHORTER, RESTING):
    paths = paths_of(setting, policy)
    np.testing.assert_allclose(sum(path.probability for path in paths), 1)
    found[policy] = {tuple(lengths.turns(path, GAMMA)) for path in paths}
    assert {len(turns) for turns in found[policy]} == {1, 2, 3, 4}
  # A first draft that fails at once leaves room for two more tokens.
  assert {turns[:2] for turns in found[WHOLE]} >= {(2, 2), (2, 1)}
  assert (2, 2) not in {turns[:2] for turns in found[SHORTER]}
  assert (2, 0, 0) in {turns[:3] for turns in found[RESTING]}


@pytest.mark.slow
def test_the_loops_would_show_another_network_s_distributions():
  target, small = (distributions(x, Sampling())[0] for x in (SKIPPING, UNDER_8))
  output = (2, 3)
  assert abs(target(output) - small(output)).sum() > 1e-3
  for drafter in (UNDER_8, FOUR_BITS):
    own, draft = distributions(drafter, Sampling())
    assert abs(own(output) - draft((output, ()))).sum() > 0.01
  # The draft reads the full network's keys before the draft.
  for drafter in (SKIPPING, FOUR_BITS):
    found = reduced_logits(drafter)
    assert abs(found[1][output] - found[0][output]).max() > 0.01
  # The draft on the target's encoder reads the input.
  rows = [reader_logits("draft", row)[(2,)] for row in range(2)]
  assert np.abs(np.subtract(*rows)).max() > 0.05


# ---- Hierarchies with a reduced target in the middle. ----

LOWEST = network_for(tiny.config(1, 8, vocab_size=SIZE))


@pytest.mark.slow
@pytest.mark.parametrize(
  ("middle", "window"),
  [(SKIPPING, "fixed"), (EIGHT_BITS, "flush")],
  ids=["skipping", "8 bits"],
)
def test_a_reduced_target_may_be_the_middle_network(middle, window):
  lowest_params = networks.sharp(LOWEST, seed=4)

  @jax.jit
  def read(tokens):
    (cache,) = start_decoding(LOWEST, lowest_params, INPUTS[:1], ROOM, len(tokens))
    return extend_fn(LOWEST, lowest_params)(cache, tokens)[0]

  found = logits_by_output(read, SIZE, ROOM)
  target, reduced = distributions(middle, TOP_K)
  levels = (
    Level(functools.cache(lambda output: adjusted(found[output], TOP_K)), 1),
    Level(reduced, 3, window == "flush", "token", begins=True),
    Level(target, ROOM),
  )
  decoder = Decoder(TARGET, Cascade(middle, DraftModel(LOWEST, 1), 3, window))
  known = {**all_params(middle), "draft": lowest_params}
  setting = Setting(target, target, None, (), ROOM)
  paths = [cascades.paths(levels, ROOM)]
  assert_the_decoder_is_exact(decoder, known, INPUTS[:1], TOP_K, [setting], paths)


# ---- Drafts that read the target's encoder, with two rows. ----

LESS = dataclasses.replace(CONFIG, num_encoder_layers=0, num_decoder_layers=1)
# The tokens that the trimmed draft can produce.
HOT = (1, 2)
READERS = {
  "target": TARGET,
  "draft": network_for(LESS),
  "trimmed": network_for(dataclasses.replace(LESS, hot=len(HOT))),
  "eagle": network_for(HeadsConfig.of(CONFIG, GAMMA, kind="eagle")),
}


@functools.cache
def reader_params():
  found = {name: params(READERS[name]) for name in ("target", "draft", "eagle")}
  head = hot.projection(found["draft"])
  trimmed = hot.trimmed(LESS, found["draft"], HOT, head)[1]
  return found | {"trimmed": jax.tree.map(jnp.asarray, trimmed)}


@functools.cache
def reader_logits(name, row):
  """Returns logits [V] after each output so far."""
  source = INPUTS[row : row + 1, : LENGTHS[row]]

  @jax.jit
  def read(params, tokens):
    of_target = {"params": params["target"]}
    encoded = TARGET.apply(of_target, source, enable_dropout=False, method="encode")
    own = {"params": params[name]}
    network = READERS[name]
    cache = network.apply(own, encoded, source, ROOM, method="start")
    cache = jax.tree.map(lambda x: jnp.repeat(x, len(tokens), axis=0), cache)
    return network.apply(own, cache, tokens, method="extend")[0]

  return logits_by_output(functools.partial(read, reader_params()), SIZE, ROOM)


@functools.cache
def eagle_logits(row):
  """Returns logits [V] after each output and each draft on the output."""
  tokens = jnp.asarray(every_output(SIZE, ROOM - 1))
  source = jnp.repeat(INPUTS[row : row + 1, : LENGTHS[row]], len(tokens), axis=0)
  # Every token counts, including 0.
  is_token = jnp.ones_like(tokens)
  batch = networks.forced(source, tokens) | {"decoder_target_tokens": is_token}

  @jit
  def found(params):
    own = {"params": params["eagle"]}
    of_target = {"params": params["target"]}
    features = forward(TARGET, params["target"], batch, method="features", taps=3)
    predicted = READERS["eagle"].apply(
      own,
      features,
      TARGET.apply(of_target, tokens, method="embed"),
      jnp.ones((*tokens.shape, tokens.shape[1]), bool),
      TARGET.apply(of_target, source, method="last_cross"),
      jnp.ones((*tokens.shape, source.shape[1]), bool),
      method="everywhere",
    )
    return TARGET.apply(of_target, predicted, method="logits")

  after = np.asarray(found(reader_params()))
  # `Setting.draft` reads this entry before `Setting.stops` excludes the draft.
  return {((), ()): np.zeros(SIZE)} | {
    (tuple(row[:n]), tuple(row[n : n + step])): after[i, n - 1, step]
    for i, row in enumerate(tokens.tolist())
    for n in range(1, ROOM)
    for step in range(min(GAMMA, ROOM - n))
  }


def assert_a_reader_is_exact(sampling, rule, name):
  is_eagle = name == "eagle"
  drafter = (EagleDraft if is_eagle else DraftModel)(READERS[name], GAMMA)
  decoder = Decoder(TARGET, drafter, RULES[rule])

  def distribution(name, row, sampling):
    found = eagle_logits(row) if name == "eagle" else reader_logits(name, row)
    return functools.cache(lambda given: adjusted(found[given], sampling))

  settings = [
    setting_of(
      distribution("target", row, sampling),
      distribution(name, row, Sampling() if sampling.greedy else sampling),
      sampling,
      rule,
      # No features exist before the target's first call.
      stops=lambda known, path: is_eagle and not known,
      given=lambda known, path: (known, path) if is_eagle else (*known, *path),
    )
    for row in range(2)
  ]
  known = {"target": reader_params()["target"], "draft": reader_params()[name]}
  paths = list(map(paths_of, settings))
  assert_the_decoder_is_exact(decoder, known, INPUTS, sampling, settings, paths)


@pytest.mark.slow
def test_drafts_on_the_target_s_encoder_keep_the_target_s_distribution():
  """`checks` has a draft of each kind."""
  assert_a_reader_is_exact(TOP_P, "block", "draft")
