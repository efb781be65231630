"""A draft on its target's encoder: which rows' features it reads, what it refuses."""

import dataclasses

import jax.numpy as jnp
import numpy as np
import pytest

from specdec_t5x.beam.decoder import BeamDecoder
from specdec_t5x.build import Model
from specdec_t5x.core.distributions import GREEDY, Sampling
from specdec_t5x.decoding.decoders import PlainDecoder, SpeculativeDecoder
from specdec_t5x.drafters.cascade import Cascade
from specdec_t5x.drafters.draft_model import DraftModel
from specdec_t5x.drafters.sparse import SparseDraft
from specdec_t5x.link.drafting import Draft
from specdec_t5x.network.functional import network_for
from specdec_t5x.training.heads import begun
from tests import networks
from tests.t5x_bridge import tiny

ROOM, LENGTH = 12, 48
TARGET = network_for(tiny.TARGET)
# As the target's decoder, so that all that it drafts stands.
PERFECT = network_for(dataclasses.replace(tiny.TARGET, num_encoder_layers=0))
SMALL = dataclasses.replace(PERFECT.config, num_decoder_layers=1)
# A batch that is encoded at less than its width, and inputs of several lengths.
TEXTS = [[5, 6, 7, 1], [9, 3, 1], [4, 4, 8, 9, 9, 6, 5, 1], [7, 1], [8, 2, 1]]
INPUTS = jnp.array([[*text, *[0] * (LENGTH - len(text))] for text in TEXTS])


def all_params(draft):
  target = networks.sharp(TARGET, 0)
  return {"target": target, "draft": begun(draft, networks.sharp(draft, 1), target)}


def run(decoder, params, sampling=GREEDY, decodes=1):
  return networks.run(decoder, params, INPUTS, ROOM, sampling, per_input=decodes)


@pytest.mark.parametrize(
  ("sampling", "slots", "decodes"), [(GREEDY, 0, 1), (Sampling(), 2, 2)]
)
def test_all_of_the_target_s_layers_draft_what_it_says(sampling, slots, decodes):
  decoder = SpeculativeDecoder(TARGET, DraftModel(PERFECT, 3), slots=slots)
  params = all_params(PERFECT)
  found = run(decoder, params, sampling, decodes)
  assert found.statistics.drafted.sum() > 20
  # Their products are of other widths, so p is q but for rounding.
  np.testing.assert_array_equal(found.statistics.accepted, found.statistics.drafted)
  if sampling.greedy:
    plain = run(PlainDecoder(TARGET), params, sampling, decodes)
    np.testing.assert_array_equal(found.tokens, plain.tokens)


DRAFT = network_for(SMALL)
WAYS = {
  "sparse": SparseDraft(DRAFT, 2, 4),
  "middle": Cascade(DRAFT, DraftModel(DRAFT, 2), 3),
}


@pytest.mark.parametrize("way", WAYS)
def test_whatever_drafts_with_it_outputs_are_the_target_s_own(way):
  decoder = SpeculativeDecoder(TARGET, WAYS[way])
  params = all_params(DRAFT)
  params |= dict.fromkeys(decoder.drafter.networks, params["draft"])
  found, plain = (run(x, params) for x in (decoder, PlainDecoder(TARGET)))
  np.testing.assert_array_equal(found.tokens, plain.tokens)
  assert found.statistics.accepted.sum() > 0


def test_it_is_refused_where_there_is_no_such_encoder():
  narrow = network_for(dataclasses.replace(tiny.DRAFT, num_encoder_layers=0))
  params = all_params(DRAFT)
  beam = BeamDecoder(TARGET, DRAFT)
  for make, message in [
    (lambda: SpeculativeDecoder(TARGET, DraftModel(narrow)), "16, got one of width 8"),
    (lambda: run(PlainDecoder(DRAFT), {"target": params["draft"]}), "got one with"),
    (lambda: run(beam, params, decodes=2), "without a beam"),
    (lambda: Draft.of(Model(DRAFT, params["draft"])), "in the same process"),
  ]:
    with pytest.raises(ValueError, match=message):
      make()
