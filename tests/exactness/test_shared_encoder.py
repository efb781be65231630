"""Drafts that read the target's encoder are exact: real networks, two inputs.

The drafts are a small decoder, a decoder trimmed to two tokens, and EAGLE, with the
distributions of EAGLE's unrolled steps in training. The enumeration reads each input
alone, without padding. A draft that reads another row's features, or features of wrong
places, draws different tokens from the same uniforms. The outputs would then lack mass.
"""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from specdec_t5x.core.distributions import Sampling
from specdec_t5x.core.rules import RULES
from specdec_t5x.core.tree import chain
from specdec_t5x.decoding.decoder import Decoder
from specdec_t5x.drafters.draft_model import DraftModel
from specdec_t5x.drafters.eagle import EagleDraft
from specdec_t5x.network import hot
from specdec_t5x.network.functional import network_for
from specdec_t5x.network.heads import HeadsConfig
from specdec_t5x.training.objectives import forward
from tests import networks
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
LESS = dataclasses.replace(CONFIG, num_encoder_layers=0, num_decoder_layers=1)
# The tokens that the trimmed draft can produce.
HOT = (1, 2)
NETWORKS = {
  "target": network_for(CONFIG),
  "draft": network_for(LESS),
  "trimmed": network_for(dataclasses.replace(LESS, hot=len(HOT))),
  "eagle": network_for(HeadsConfig.of(CONFIG, GAMMA, kind="eagle")),
}
# Attention ignores the order of features, but not padding beside the features.
INPUTS = jnp.array([[2, 3, 3, 1], [3, 1, 0, 0]])
LENGTHS = (4, 2)


@functools.cache
def params():
  """Returns parameters with distributions that are neither flat nor certain."""
  found = {
    name: jax.tree.map(
      lambda x: 1.7 * x, networks.initialize(NETWORKS[name], INPUTS, 3)["params"]
    )
    for name in ("target", "draft", "eagle")
  }
  head = hot.projection(found["draft"])
  return found | {"trimmed": hot.trimmed(LESS, found["draft"], HOT, head)[1]}


@functools.cache
def logits(name, row):
  """Returns logits [V] after each output so far."""
  source = INPUTS[row : row + 1, : LENGTHS[row]]
  apply = NETWORKS["target"].apply

  @jax.jit
  def read(params, tokens):
    of_target = {"params": params["target"]}
    encoded = apply(of_target, source, enable_dropout=False, method="encode")
    own = {"params": params[name]}
    network = NETWORKS[name]
    cache = network.apply(own, encoded, source, ROOM, method="start")
    cache = jax.tree.map(lambda x: jnp.repeat(x, len(tokens), axis=0), cache)
    return network.apply(own, cache, tokens, method="extend")[0]

  return logits_by_output(functools.partial(read, params()), SIZE, ROOM)


@functools.cache
def eagle_logits(row):
  """Returns logits [V] after each output and each draft on the output."""
  tokens = jnp.asarray(every_output(SIZE, ROOM - 1))
  source = jnp.repeat(INPUTS[row : row + 1, : LENGTHS[row]], len(tokens), axis=0)
  # Every token counts, including 0.
  is_token = jnp.ones_like(tokens)
  batch = networks.forced(source, tokens) | {"decoder_target_tokens": is_token}
  network = NETWORKS["eagle"]
  target = NETWORKS["target"]

  @jit
  def found(params):
    own = {"params": params["eagle"]}
    of_target = {"params": params["target"]}
    features = forward(target, params["target"], batch, method="features", taps=3)
    predicted = network.apply(
      own,
      features,
      target.apply(of_target, tokens, method="embed"),
      jnp.ones((*tokens.shape, tokens.shape[1]), bool),
      target.apply(of_target, source, method="last_cross"),
      jnp.ones((*tokens.shape, source.shape[1]), bool),
      method="everywhere",
    )
    return target.apply(of_target, predicted, method="logits")

  after = np.asarray(found(params()))
  # `Setting.draft` reads this entry before `Setting.stops` excludes the draft.
  return {((), ()): np.zeros(SIZE)} | {
    (tuple(row[:n]), tuple(row[n : n + step])): after[i, n - 1, step]
    for i, row in enumerate(tokens.tolist())
    for n in range(1, ROOM)
    for step in range(min(GAMMA, ROOM - n))
  }


def distribution(name, row, sampling):
  """Returns the adjusted distribution of a network as a function of its prefix."""
  found = eagle_logits(row) if name == "eagle" else logits(name, row)
  return functools.cache(lambda given: adjusted(found[given], sampling))


def assert_the_loop_is_exact(sampling, rule, draft):
  is_eagle = draft == "eagle"
  drafter = (EagleDraft if is_eagle else DraftModel)(NETWORKS[draft], GAMMA)
  decoder = Decoder(NETWORKS["target"], drafter, RULES[rule])
  network_params = {"target": params()["target"], "draft": params()[draft]}
  settings = []
  for row in range(2):
    setting = Setting(
      distribution("target", row, sampling),
      distribution(draft, row, Sampling() if sampling.greedy else sampling),
      JUDGES["greedy" if sampling.greedy else rule],
      chain(GAMMA).parents,
      ROOM,
      siblings="likeliest" if sampling.greedy else "independent",
      # No features exist before the target's first call.
      stops=lambda known, path: is_eagle and not known,
      given=lambda known, path: (known, path) if is_eagle else (*known, *path),
    )
    settings.append(setting)
  paths = [list(explore(functools.partial(decode, setting=each))) for each in settings]
  assert_the_decoder_is_exact(
    decoder, network_params, INPUTS, sampling, settings, paths
  )


@pytest.mark.slow
def test_the_loop_keeps_the_target_s_distribution():
  """`checks` has a draft of each kind."""
  assert_the_loop_is_exact(Sampling(0.8, top_p=0.8), "block", "draft")


def test_the_draft_s_distributions_depend_on_the_input():
  """Features of a wrong row would therefore show."""
  row_logits = [logits("draft", row)[(2,)] for row in range(2)]
  assert np.abs(np.subtract(*row_logits)).max() > 0.05
