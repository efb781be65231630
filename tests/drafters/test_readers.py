"""Drafts that read the target's encoder: acceptance, outputs and refusals."""

import dataclasses

import jax.numpy as jnp
import numpy as np
import pytest

from specdec_t5x.contrib.link.server import Drafting
from specdec_t5x.core.distributions import GREEDY, Sampling
from specdec_t5x.decoding.decoder import Decoder
from specdec_t5x.drafters.draft_model import DraftModel
from specdec_t5x.network.functional import network_for
from specdec_t5x.training.heads import begun
from specdec_t5x.ways import Model
from tests import networks
from tests.t5x_bridge import tiny
from tests.training.conftest import params_of

ROOM = 12
LENGTH = 48
TARGET = network_for(tiny.TARGET)
# A draft with the target's decoder, so every drafted token is accepted.
PERFECT = network_for(dataclasses.replace(tiny.TARGET, num_encoder_layers=0))
SMALL = dataclasses.replace(PERFECT.config, num_decoder_layers=1)
# The batch is encoded at less than the full width, with inputs of several lengths.
TEXTS = [[5, 6, 7, 1], [9, 3, 1], [4, 4, 8, 9, 9, 6, 5, 1], [7, 1], [8, 2, 1]]
INPUTS = jnp.array([[*text, *[0] * (LENGTH - len(text))] for text in TEXTS])


def all_params(draft):
  target = params_of(TARGET, 0, 2.0)
  return {"target": target, "draft": begun(draft, params_of(draft, 1, 2.0), target)}


def run(decoder, params, sampling=GREEDY, decodes=1):
  return networks.run(decoder, params, INPUTS, ROOM, sampling, per_input=decodes)


def test_a_draft_with_the_target_s_decoder_is_accepted():
  decoder = Decoder(TARGET, DraftModel(PERFECT, 3), slots=2)
  found = run(decoder, all_params(PERFECT), Sampling(), 2)
  assert found.statistics.drafted.sum() > 20
  # Products differ in width, so p equals q up to rounding.
  np.testing.assert_array_equal(found.statistics.accepted, found.statistics.drafted)


def test_a_draft_without_a_matching_encoder_is_refused():
  narrow = network_for(dataclasses.replace(tiny.DRAFT, num_encoder_layers=0))
  draft = network_for(SMALL)
  params = all_params(draft)
  for make, message in [
    (lambda: Decoder(TARGET, DraftModel(narrow)), "16, got width 8"),
    (lambda: run(Decoder(draft), {"target": params["draft"]}), "got a draft on"),
    (lambda: Drafting.of(Model(draft, params["draft"])), "in the target's process"),
  ]:
    with pytest.raises(ValueError, match=message):
      make()
