"""The target drafts for itself in few bits: plain outputs, and the target's cache."""

import dataclasses
import functools

import jax
import numpy as np
import pytest

from specdec_t5x import api, build, tuning
from specdec_t5x.core.distributions import GREEDY, Sampling
from specdec_t5x.core.rules import RULES
from specdec_t5x.decoding import step as step_module
from specdec_t5x.decoding.decoders import SpeculativeDecoder
from specdec_t5x.decoding.policy import Fixed
from specdec_t5x.decoding.state import row_keys
from specdec_t5x.drafters.quantized import NAME, Quantized
from specdec_t5x.network import rounded
from specdec_t5x.network.functional import network_for
from specdec_t5x.policies import CostAware
from tests.drafters import test_layer_skip as of_target
from tests.exactness import faults
from tests.network.kinds import T5_1_0
from tests.t5x_bridge import tiny, tiny_gpt

INPUTS, ROOM, GAMMA = of_target.INPUTS, of_target.ROOM, 3
TARGETS = {"t5": tiny.TARGET, "tied": T5_1_0, "gpt": tiny_gpt.TARGET}
WAYS = {
  "8": Quantized(gamma=GAMMA),
  "4": Quantized(4, 8, gamma=GAMMA),
  "4 and less": Quantized(4, 0, ("logits",), ("self_0",), GAMMA),
}


@functools.cache
def model(kind):
  network = network_for(TARGETS[kind])
  tokens = [INPUTS] * (2 if kind == "gpt" else 3)
  init = jax.jit(lambda key: network.init(key, *tokens, enable_dropout=False))
  params = jax.tree.map(lambda x: 2 * x, init(jax.random.key(1))["params"])
  return api.Model(network, params)


def run(kind, drafter=None, sampling=GREEDY, policy=None, draft=None, slots=0):
  decoder, params = build.together(model(kind), draft, drafter, policy=policy)
  decoder = dataclasses.replace(decoder, slots=slots)
  keys = row_keys(jax.random.key(0), len(INPUTS))
  decode = lambda params: decoder.decode(params, INPUTS, keys, sampling, ROOM, 1)
  return jax.jit(decode)(params)


@pytest.mark.parametrize(
  ("kind", "way"), [("t5", "8"), ("tied", "4"), ("gpt", "4 and less")]
)
def test_greedy_outputs_are_the_plain_ones(kind, way):
  found = run(kind, WAYS[way], policy=Fixed())
  np.testing.assert_array_equal(found.tokens, run(kind).tokens)
  info = found.statistics
  assert info.drafted.sum() > 0
  if way == "8":
    assert info.accepted.sum() > 0.8 * info.drafted.sum()


def test_more_bits_draft_better():
  info = [run("t5", WAYS[way], Sampling(), Fixed()).statistics for way in ("8", "4")]
  alphas = [x.acceptance_mass.sum() / x.acceptance_positions.sum() for x in info]
  assert 1 > alphas[0] > alphas[1] > 0.3


# ---- The target's cache. ----


def prepared():
  decoder, params = build.together(model("t5"), None, WAYS["4"], policy=Fixed())
  keys = row_keys(jax.random.key(0), len(INPUTS))
  return decoder.prepare(params, INPUTS, keys, GREEDY, ROOM, -1)


def test_the_target_s_cache_is_as_without_drafts():
  of_target.assert_the_cache_is_the_target_s(*prepared())


def test_a_cache_with_the_draft_s_keys_is_noticed(monkeypatch):
  monkeypatch.setattr(step_module, "score", faults.the_draft_s_keys_stay)
  with pytest.raises(AssertionError):
    of_target.assert_the_cache_is_the_target_s(*prepared())


# ---- Once, and what can't be. ----


def test_weights_are_rounded_once_and_it_is_said(monkeypatch):
  said = []
  monkeypatch.setattr(tuning, "say", said.append)
  target = dataclasses.replace(model("t5"), _derived={})
  first, again = (
    build.together(target, "quantized", gamma=gamma)[1][NAME] for gamma in (2, 3)
  )
  assert first is again
  assert len(said) == 1
  assert said[0].startswith("Quantized: 0.0 MB beside the target's 0.0 MB")
  # A run's record has the bytes.
  sizes = {"bytes": rounded.size(first), "bytes_of_target": rounded.size(target.params)}
  assert tuning.sizes([NAME, "other"]) == {NAME: sizes}


def test_a_name_is_enough():
  decoder, _ = build.together(model("t5"), "quantized")
  assert decoder.drafter == Quantized()
  assert decoder.policy == CostAware(prior_alpha=0.9)
  with pytest.raises(ValueError, match="names a drafter"):
    build.together(model("t5"), "quantized", "copy")


def test_weights_that_were_not_rounded_are_missed():
  decoder = SpeculativeDecoder(network_for(tiny.TARGET), WAYS["8"], RULES["token"])
  keys = row_keys(jax.random.key(0), len(INPUTS))
  given = {"target": model("t5").params}, INPUTS, keys, GREEDY, ROOM, 1
  with pytest.raises(ValueError, match="'quantized' is not among the parameters"):
    decoder.decode(*given)


def test_gin_s_lists_make_it(unchecked):
  assert hash(Quantized(whole=["logits"], skip=["mlp_0"]))
