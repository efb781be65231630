"""Decodes with an observer, and the kind of token at every place."""

import jax
import jax.numpy as jnp

from specdec_t5x.core.distributions import GREEDY, Sampling
from specdec_t5x.core.rules import RULES
from specdec_t5x.decoding.decoder import Decoder
from specdec_t5x.decoding.loop import generate
from specdec_t5x.decoding.policies import CostAware
from specdec_t5x.decoding.state import row_keys
from specdec_t5x.drafters.draft_model import DraftModel
from specdec_t5x.network.transformer import Transformer
from tests import networks
from tests.hash_model import HashModel, speculation
from tests.t5x_bridge import tiny

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
  """Decodes with table models."""
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


def of_networks(observer):
  """Samples from tiny networks; rows rest and take turns."""
  network = Transformer(tiny.DRAFT)
  inputs = jnp.ones((4, 3), jnp.int32)
  params = {
    name: networks.initialize(network, inputs, seed)["params"]
    for seed, name in enumerate(("target", "draft"))
  }
  decoder = Decoder(
    network,
    DraftModel(network, 2),
    policy=CostAware((1.0, 1.7, 1.8), prior_weight=1.0),
    slots=2,
    observer=observer,
  )
  return networks.run(decoder, params, inputs, LENGTH, AT_ONE)
