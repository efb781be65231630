"""Exactness of a draft on its target's encoder: real networks, two inputs of a batch.

The draft's distributions are enumerated from each input alone, without its padding. A
draft that read another row's features, or its own in other places, would draft other
tokens by the same uniforms, and outputs would lack mass.
"""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from specdec_t5x.core.distributions import GREEDY, Sampling
from specdec_t5x.core.rules import RULES
from specdec_t5x.core.tree import chain
from specdec_t5x.decoding.decoders import SpeculativeDecoder
from specdec_t5x.decoding.generate import generate
from specdec_t5x.decoding.state import row_keys
from specdec_t5x.drafters.draft_model import DraftModel
from specdec_t5x.network import hot
from specdec_t5x.network.functional import network_for
from tests import networks
from tests.exactness.distributions import adjusted
from tests.exactness.driving import Driven, assert_all_are, padded, probs_along
from tests.exactness.enumeration import Setting, decode, explore, target_probs
from tests.exactness.oracles import JUDGES
from tests.t5x_bridge import tiny

SIZE, ROOM, GAMMA = 4, 4, 2
CONFIG = tiny.config(2, 16, vocab_size=SIZE)
LESS = dataclasses.replace(CONFIG, num_encoder_layers=0, num_decoder_layers=1)
# Tokens that the trimmed draft says.
HOT = (1, 2)
NETWORKS = {
  "target": network_for(CONFIG),
  "draft": network_for(LESS),
  "trimmed": network_for(dataclasses.replace(LESS, hot=len(HOT))),
}
# Attention does not mind where features stand, but for the padding beside them.
INPUTS, LENGTHS = jnp.array([[2, 3, 3, 1], [3, 1, 0, 0]]), (4, 2)


@functools.cache
def params():
  """Parameters whose distributions are neither flat nor certain."""
  found = {
    name: jax.tree.map(
      lambda x: 1.7 * x, networks.initialize(NETWORKS[name], INPUTS, 3)["params"]
    )
    for name in ("target", "draft")
  }
  head = hot.projection(found["draft"])
  return found | {"trimmed": hot.trimmed(LESS, found["draft"], HOT, head)[1]}


@functools.cache
def logits(name, row):
  """Logits [V] after each output so far."""
  tokens = np.array(list(np.ndindex(*[SIZE] * (ROOM - 1))))
  source, apply = INPUTS[row : row + 1, : LENGTHS[row]], NETWORKS["target"].apply

  @jax.jit
  def found(params):
    known = {"params": params["target"]}, source
    encoded = apply(*known, enable_dropout=False, method="encode")
    own, network = {"params": params[name]}, NETWORKS[name]
    cache = network.apply(own, encoded, source, ROOM, method="start")
    cache = jax.tree.map(lambda x: jnp.repeat(x, len(tokens), axis=0), cache)
    read = jnp.pad(tokens, ((0, 0), (1, 0)))
    return network.apply(own, cache, read, method="extend")[0]

  after = np.asarray(found(params()))
  return {
    tuple(row[:n]): after[i, n]
    for i, row in enumerate(tokens.tolist())
    for n in range(ROOM)
  }


def assert_the_loop_is_exact(sampling, rule="token", draft="draft"):
  decoder = SpeculativeDecoder(
    NETWORKS["target"], DraftModel(NETWORKS[draft], GAMMA), RULES[rule]
  )
  given = {"target": params()["target"], "draft": params()[draft]}

  def drive(uniforms, row):
    keys = row_keys(jax.random.key(0), 2 * len(uniforms))
    spec, state = decoder.prepare(given, INPUTS, keys, sampling, ROOM, 1)
    prescribed = jnp.concatenate([uniforms, uniforms])
    tokens = generate(spec, Driven(**vars(state), prescribed=prescribed)).tokens
    return tokens.reshape(2, len(uniforms), -1)[row]

  for row in range(2):
    of = lambda name, sampling, row=row: functools.cache(
      lambda output: adjusted(logits(name, row)[output], sampling)
    )
    setting = Setting(
      of("target", sampling),
      of(draft, Sampling() if sampling.greedy else sampling),
      JUDGES["greedy" if sampling.greedy else rule],
      chain(GAMMA).parents,
      ROOM,
      siblings="likeliest" if sampling.greedy else "independent",
    )
    paths = list(explore(lambda world, setting=setting: decode(world, setting)))
    run = jax.jit(functools.partial(drive, row=row))
    expected = padded(target_probs(setting), ROOM)
    assert_all_are(probs_along(paths, run, 2 * GAMMA + 1, ROOM), expected)


@pytest.mark.parametrize("rule", ["token", "block", "traversal"])
@pytest.mark.parametrize("sampling", [Sampling(), Sampling(0.8, top_p=0.8), GREEDY])
def test_the_loop_keeps_the_target_s_distribution(sampling, rule):
  assert_the_loop_is_exact(sampling, rule)


@pytest.mark.parametrize("sampling", [Sampling(), Sampling(0.8, top_k=3), GREEDY])
def test_so_it_does_with_a_draft_of_two_tokens(sampling):
  assert_the_loop_is_exact(sampling, "block", "trimmed")


def test_the_draft_s_distributions_depend_on_the_input():
  """Else features of another row would not show."""
  of_rows = [logits("draft", row)[(2,)] for row in range(2)]
  assert np.abs(np.subtract(*of_rows)).max() > 0.05
