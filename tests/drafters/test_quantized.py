"""The target drafts for itself with few bits: plain outputs, weights rounded once."""

import dataclasses
import functools

import numpy as np
import pytest

from specdec_t5x import api, build, console
from specdec_t5x.core.distributions import GREEDY, Sampling
from specdec_t5x.core.rules import RULES
from specdec_t5x.decoding.decoder import Decoder
from specdec_t5x.decoding.policies import Fixed
from specdec_t5x.drafters.of_target import NAME, Quantized
from specdec_t5x.network.functional import network_for
from specdec_t5x.policies import CostAware
from tests import networks
from tests.drafters import test_layer_skip as of_target
from tests.network.kinds import T5_1_0
from tests.t5x_bridge import tiny, tiny_gpt
from tests.training.conftest import params_of

INPUTS = of_target.INPUTS
ROOM = of_target.ROOM
GAMMA = 3
TARGETS = {"t5": tiny.TARGET, "tied": T5_1_0, "gpt": tiny_gpt.TARGET}
WAYS = {
  "8": Quantized(gamma=GAMMA),
  "4": Quantized(4, 8, gamma=GAMMA),
  "4 and less": Quantized(4, 0, ("logits",), ("self_0",), GAMMA),
}


@functools.cache
def model(kind):
  network = network_for(TARGETS[kind])
  return api.Model(network, params_of(network, 1, 2.0))


def run(kind, drafter=None, sampling=GREEDY):
  policy = None if drafter is None else Fixed()
  decode = functools.partial(networks.decode, inputs=INPUTS, room=ROOM)
  return decode(model(kind), None, drafter, policy=policy, sampling=sampling)


def test_greedy_outputs_equal_plain_decoding():
  """The target is decoder-only; tests/test_table.py tests an encoder-decoder."""
  found = run("gpt", WAYS["4 and less"])
  np.testing.assert_array_equal(found.tokens, run("gpt").tokens)
  assert found.statistics.drafted.sum() > 0


@pytest.mark.slow
def test_more_bits_have_a_higher_alpha():
  info = [run("tied", WAYS[way], Sampling()).statistics for way in ("8", "4")]
  alphas = [x.acceptance_mass.sum() / x.acceptance_positions.sum() for x in info]
  assert 1 > alphas[0] > 0.8
  assert alphas[0] > alphas[1] > 0.3


# ---- Rounding, and refusals. ----


def test_weights_are_rounded_once_with_a_message(monkeypatch):
  said = []
  monkeypatch.setattr(console, "say", said.append)
  target = dataclasses.replace(model("t5"))  # Has derived nothing yet.
  first, again = (
    build.together(target, "quantized", gamma=gamma)[1][NAME] for gamma in (2, 3)
  )
  assert first is again
  assert len(said) == 1
  assert said[0].startswith("Quantized: 0.0 MB beside the target's 0.0 MB")


def test_a_drafter_may_be_given_by_name():
  decoder, _ = build.together(model("t5"), "quantized")
  assert decoder.drafter == Quantized()
  assert decoder.policy == CostAware(prior_alpha=0.9)
  with pytest.raises(ValueError, match="names a drafter"):
    build.together(model("t5"), "quantized", "copy")


def test_missing_rounded_weights_are_an_error():
  decoder = Decoder(network_for(tiny.TARGET), WAYS["8"], RULES["token"])
  params = {"target": model("t5").params}
  with pytest.raises(ValueError, match="'quantized' is not among the parameters"):
    networks.run(decoder, params, INPUTS, ROOM)


def test_lists_from_gin_are_hashable(unchecked):
  assert hash(Quantized(whole=["logits"], skip=["mlp_0"]))
