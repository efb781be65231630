"""Beam search as a T5X model equals T5X's beam search on random tiny networks."""

import functools

import jax
import numpy as np
import pytest
from t5x import decoding, models

from specdec_t5x import build, tuning
from specdec_t5x.contrib.beam.decoder import BeamDecoder
from specdec_t5x.core.distributions import GREEDY
from specdec_t5x.drafters.draft_model import DraftModel
from specdec_t5x.network.gpt import GptTransformer
from specdec_t5x.network.transformer import Transformer
from specdec_t5x.t5x_bridge import pairing
from tests.t5x_bridge import tiny, tiny_gpt

LENGTH = 12
TARGET = Transformer(tiny.TARGET)


def model(decoder, vocabulary, num_decodes=4, sampling=GREEDY):
  params = models.DecoderParams(num_decodes=num_decodes, return_all_decodes=True)
  return tiny.model(decoder, vocabulary, sampling, default_decoder_params=params)


def plain(vocabulary, num_decodes=4, sampling=GREEDY, target=TARGET, **settings):
  return model(BeamDecoder(target, **settings), vocabulary, num_decodes, sampling)


def speculative(vocabulary, draft=tiny.DRAFT, **kwargs):
  settings = {"gamma": 2, "draft_beam_size": 6, **kwargs}
  return plain(vocabulary, draft=Transformer(draft), **settings)


@pytest.fixture(scope="module")
def params(vocabulary):
  """Returns parameters of a pair; frequent EOS fills the pool of finished beams."""
  params = tiny.variables(speculative(vocabulary))["params"]

  def favour_eos(path, x):
    is_output = any(getattr(key, "key", None) == "logits_dense" for key in path)
    return x.at[:, 1].set(1.5 * x[:, 1]) if is_output else x

  return jax.tree_util.tree_map_with_path(favour_eos, params)


@pytest.mark.parametrize("settings", [{}, {"draft": Transformer(tiny.DRAFT)}])
@pytest.mark.parametrize(("rows", "num_decodes"), [(1, 1), (4, 1), (3, 4)])
def test_a_beam_needs_no_measured_times(
  params, settings, rows, num_decodes, monkeypatch
):
  monkeypatch.setattr(tuning, "_times", None)
  decoder = BeamDecoder(TARGET, **settings)
  lengths = {"inputs": 9, "targets": LENGTH}
  assert pairing.tune(params, decoder, GREEDY, rows, num_decodes, lengths) == {}


@pytest.fixture(scope="module")
def baseline(vocabulary, params, batch):
  return tiny.predict(plain(vocabulary), params, batch)


def assert_same(found, expected):
  np.testing.assert_array_equal(found[0], expected[0])
  np.testing.assert_allclose(found[1]["scores"], expected[1]["scores"], atol=1e-4)


@pytest.mark.slow
def test_beams_equal_t5x_beam_search(vocabulary, params, batch, baseline):
  """Beams equal T5X's; tests/contrib enumerates beams with other penalties."""
  search = functools.partial(decoding.beam_search, alpha=0.6)
  model = tiny.t5x_model(TARGET, vocabulary, search)
  settings = {"num_decodes": 4, "return_all_decodes": True}
  expected = tiny.predict(model, params["target"], batch, **settings)
  assert expected[0].shape == (5, 4, LENGTH)
  # Some rows fill the pool of finished beams before the maximum length.
  ends = (np.asarray(expected[0]) == 1).any(axis=2)
  assert ends.any()
  assert_same(baseline, expected)
  assert_same(tiny.predict(speculative(vocabulary), params, batch), expected)


def test_a_beam_with_the_target_as_draft_accepts_whole_trees(
  vocabulary, params, batch, baseline
):
  twice = {"target": params["target"], "draft": params["target"]}
  model = speculative(vocabulary, draft=tiny.TARGET, gamma=3)
  tokens, aux = tiny.predict(model, twice, batch)
  assert_same((tokens, aux), baseline)
  np.testing.assert_array_equal(aux["accepted"], aux["acceptance_positions"])
  np.testing.assert_array_equal(aux["acceptance_mass"], aux["accepted"])
  np.testing.assert_array_equal(aux["tokens"], baseline[1]["tokens"])
  np.testing.assert_array_equal(aux["target_calls"], -(-aux["tokens"] // 4))
  np.testing.assert_array_equal(baseline[1]["target_calls"], baseline[1]["tokens"])
  assert set(aux) == set(baseline[1])
  assert all(aux[name].shape == (5,) for name in set(aux) - {"scores"})


@pytest.mark.parametrize(
  ("bad", "message"),
  [
    ({"draft_beam_size": 3}, "DRAFT_BEAM_SIZE must be .* from BEAM_SIZE=4"),
    ({"draft_beam_size": 64}, "DRAFT_BEAM_SIZE must be .* 64 tokens"),
    ({"num_decodes": 64}, "BEAM_SIZE must be below"),
    ({"gamma": 0}, "GAMMA must be"),
  ],
)
def test_bad_settings_are_refused(vocabulary, bad, message):
  """tests/errors/cases.toml has further refusals, with the messages of the commands."""
  with pytest.raises(ValueError, match=message):
    speculative(vocabulary, **bad).check_max_length(LENGTH)


def of_words(**words):
  """Builds a beam with a draft like the gin files."""
  settings = {"drafter": DraftModel(Transformer(tiny.DRAFT)), "seed": 0, **words}
  return build.beam(TARGET, **settings)


def test_a_beam_takes_gamma_and_network_of_the_draft_model():
  drafter = DraftModel(Transformer(tiny.DRAFT), gamma=3)
  decoder = of_words(drafter=drafter, draft_beam_size=6)
  assert decoder == BeamDecoder(TARGET, drafter.network, 3, 6)


def test_a_beam_s_trees_have_gamma_levels():
  assert of_words(policy="fixed") == of_words(policy=None)


def test_a_decoder_only_network_is_refused():
  with pytest.raises(ValueError, match="an encoder-decoder, got a GptTransformer"):
    BeamDecoder(GptTransformer(tiny_gpt.TARGET))
