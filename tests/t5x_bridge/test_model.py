import jax
import jax.numpy as jnp
import numpy as np
import pytest
from t5x import models

from specdec_t5x.core.distributions import Sampling
from specdec_t5x.core.types import Guarantee
from specdec_t5x.network.transformer import Transformer
from specdec_t5x.t5x_bridge.model import SpeculativeEncoderDecoderModel
from tests.t5x_bridge import tiny

LENGTH = 12


@pytest.fixture(scope="module")
def batch():
  rng = np.random.default_rng(0)
  inputs = rng.integers(3, 30, size=(5, 9))
  inputs[1, 4:], inputs[2, 1:] = 0, 0
  targets = rng.integers(3, 30, size=(5, LENGTH))
  return {
    "encoder_input_tokens": jnp.asarray(inputs, jnp.int32),
    "decoder_input_tokens": jnp.asarray(np.pad(targets, ((0, 0), (1, 0)))[:, :-1]),
    "decoder_target_tokens": jnp.asarray(targets),
    "decoder_loss_weights": jnp.ones((5, LENGTH)),
  }


def predict(model, params, batch, **kwargs):
  run = lambda params, batch: model.predict_batch_with_aux(
    params, batch, jax.random.PRNGKey(0), **kwargs
  )
  return jax.jit(run)(params, batch)


@pytest.mark.parametrize("gamma", [1, 15])
def test_greedy_tokens_are_the_plain_models(vocabulary, batch, gamma):
  model = tiny.speculative(vocabulary, gamma=gamma)
  params = tiny.variables(model)["params"]
  tokens, aux = predict(model, params, batch)
  expected, _ = predict(tiny.plain(vocabulary), params["target"], batch)
  np.testing.assert_array_equal(tokens, expected)
  np.testing.assert_array_equal(aux["scores"], 0.0)


@pytest.mark.parametrize(
  "policy",
  [
    {"gamma_policy": "confidence", "confidence": 1.0},
    # Blocks this dear pay for no alpha.
    {"gamma_policy": "online", "draft_cost": 0.5, "block_costs": [1.0, 2.5, 3.5, 4.5]},
  ],
  ids=lambda policy: policy["gamma_policy"],
)
def test_the_policy_of_gamma_reaches_the_loop(vocabulary, batch, policy):
  model = tiny.speculative(vocabulary, gamma=5, **policy)
  params = tiny.variables(model)["params"]
  tokens, aux = predict(model, params, batch)
  expected, _ = predict(tiny.plain(vocabulary), params["target"], batch)
  np.testing.assert_array_equal(tokens, expected)
  np.testing.assert_array_equal(aux["drafted"], 0)
  np.testing.assert_array_equal(aux["target_calls"], aux["tokens"])


def test_greedy_tokens_are_those_of_t5x_temperature_sample(vocabulary, batch):
  from t5x import decoding

  model = tiny.speculative(vocabulary)
  params = tiny.variables(model)["params"]

  def greedy(**kwargs):
    return decoding.temperature_sample(temperature=0.0, **kwargs)

  t5x_model = models.EncoderDecoderModel(
    model.pair.target, vocabulary, vocabulary, None, decode_fn=greedy
  )
  tokens, _ = predict(model, params, batch)
  expected, _ = predict(t5x_model, params["target"], batch)
  np.testing.assert_array_equal(tokens, expected)


def test_statistics_of_each_example(vocabulary, batch):
  model = tiny.speculative(vocabulary, Sampling(1.0))
  tokens, aux = predict(model, tiny.variables(model)["params"], batch)
  assert set(aux) == {
    "scores",
    "tokens",
    "target_calls",
    "drafted",
    "accepted",
    "acceptance_mass",
    "acceptance_positions",
  }
  assert all(value.shape == (5,) for value in aux.values())
  assert (aux["tokens"] <= LENGTH).all()
  assert (aux["target_calls"] <= aux["tokens"]).all()
  assert (aux["accepted"] <= aux["acceptance_positions"]).all()
  assert tokens.shape == (5, LENGTH)


def test_target_as_draft_has_alpha_one(vocabulary, batch):
  model = tiny.speculative(vocabulary, Sampling(1.0), draft=tiny.TARGET, gamma=3)
  target = tiny.variables(model)["params"]["target"]
  _, aux = predict(model, {"target": target, "draft": target}, batch)
  np.testing.assert_array_equal(aux["accepted"], aux["acceptance_positions"])
  np.testing.assert_allclose(
    aux["acceptance_mass"], aux["acceptance_positions"], rtol=1e-4
  )


def test_several_decodes_are_sorted_by_score(vocabulary, batch):
  count = models.DecoderParams(num_decodes=4, return_all_decodes=True)
  model = tiny.speculative(vocabulary, Sampling(1.0), default_decoder_params=count)
  params = tiny.variables(model)["params"]
  tokens, aux = predict(model, params, batch)
  assert tokens.shape == (5, 4, LENGTH)
  assert (np.diff(aux["scores"], axis=1) >= 0).all()
  assert len({row.tobytes() for row in np.asarray(tokens[0])}) > 1
  best, best_aux = predict(model, params, batch, return_all_decodes=False)
  np.testing.assert_array_equal(best, tokens[:, -1])
  np.testing.assert_array_equal(best_aux["scores"], aux["scores"][:, -1])


def test_seed_changes_the_samples(vocabulary, batch):
  sample = lambda seed: np.asarray(
    predict(
      model := tiny.speculative(vocabulary, Sampling(1.0), seed=seed),
      tiny.variables(model)["params"],
      batch,
    )[0]
  )
  assert (sample(1) != sample(2)).any()


def test_score_is_the_targets_log_likelihood(vocabulary, batch):
  model = tiny.speculative(vocabulary)
  params = tiny.variables(model)["params"]
  alone = jax.jit(tiny.plain(vocabulary).score_batch)(params["target"], batch)
  scores = jax.jit(model.score_batch)(params, batch)
  np.testing.assert_allclose(scores, alone, rtol=1e-6)
  assert (np.asarray(alone) < 0).all()


def test_bfloat16_parameters_decode_as_the_same_numbers_in_float32(vocabulary, batch):
  model = tiny.speculative(vocabulary, Sampling(1.0))
  cast = lambda params, dtype: jax.tree.map(lambda x: x.astype(dtype), params)
  params = cast(tiny.variables(model)["params"], jnp.bfloat16)
  tokens, aux = predict(model, params, batch)
  expected, expected_aux = predict(model, cast(params, jnp.float32), batch)
  np.testing.assert_array_equal(tokens, expected)
  jax.tree.map(np.testing.assert_array_equal, aux, expected_aux)
  # They are other numbers than those before the cast.
  _, before = predict(model, tiny.variables(model)["params"], batch)
  assert (aux["scores"] != before["scores"]).any()


def test_guarantee(vocabulary):
  assert tiny.speculative(vocabulary).guarantee is Guarantee.EXACT
  greedy = tiny.speculative(vocabulary, verification="greedy")
  assert greedy.guarantee is Guarantee.GREEDY_EXACT
  assert tiny.plain(vocabulary).guarantee is Guarantee.EXACT


@pytest.mark.parametrize(
  ("bad", "message"),
  [
    ({"gamma": 0}, "GAMMA must be"),
    ({"gamma": 2.5}, "GAMMA must be"),
    ({"drafter": "oracle"}, "Unknown DRAFTER"),
    ({"verification": "hope"}, "Unknown verification rule"),
    ({"verification": "greedy", "sampling": Sampling(1.0)}, "needs TEMPERATURE=0"),
    ({"lenience": 0.5}, "LENIENCE=0.5 needs VERIFICATION='lenient'"),
    ({"num_candidates": 0}, "NUM_CANDIDATES must be"),
    ({"num_candidates": 2}, "NUM_CANDIDATES=2 needs a VERIFICATION of"),
    ({"gamma_policy": "hope"}, "Unknown GAMMA_POLICY"),
    ({"gamma_policy": "confidence", "confidence": 1.5}, "CONFIDENCE must be between"),
    ({"confidence": 0.5}, "CONFIDENCE=0.5 needs GAMMA_POLICY='confidence'"),
    ({"gamma_policy": "online"}, "needs DRAFT_COST = c"),
    (
      {"gamma_policy": "online", "draft_cost": -0.1},
      "must be finite numbers of at least 0, got -0.1",
    ),
    (
      {"gamma_policy": "online", "draft_cost": 0.1, "block_costs": [1.0]},
      "BLOCK_COSTS needs one number for each width of block",
    ),
    ({"draft_cost": 0.1}, "need GAMMA_POLICY='online', got 'fixed'"),
    (
      {"gamma_policy": "confidence", "verification": "kseq", "num_candidates": 2},
      "judges a single draft, got 'kseq'",
    ),
    ({"draft": tiny.config(1, 8, vocab_size=72)}, "must share a vocabulary"),
    ({"drafter": "copy"}, "DRAFTER='copy' has no draft network, got a Transformer"),
    ({"drafter": "ngram"}, "DRAFTER='ngram' does not go with a Transformer"),
    ({"copy_match": 2}, "COPY_MATCH=2 needs DRAFTER='copy'"),
    (
      {"target": tiny.config(1, 8, 24), "draft": tiny.config(1, 8, 24)},
      "The vocabulary has 30 tokens",
    ),
    ({"default_decoder_params": models.DecoderParams(num_decodes=0)}, "NUM_DECODES"),
  ],
)
def test_bad_settings_are_refused(vocabulary, bad, message):
  with pytest.raises(ValueError, match=message):
    tiny.speculative(vocabulary, **bad)


@pytest.mark.parametrize("name", ["kseq", "recursive", "block", "greedy"])
def test_every_exact_rule_keeps_the_greedy_output(vocabulary, batch, name):
  several = {"num_candidates": 2} if name in ("kseq", "recursive") else {}
  model = tiny.speculative(vocabulary, verification=name, **several)
  params = tiny.variables(model)["params"]
  plain, _ = predict(tiny.plain(vocabulary), params["target"], batch)
  np.testing.assert_array_equal(predict(model, params, batch)[0], plain)


def test_copying_keeps_the_greedy_output(vocabulary, batch):
  model = SpeculativeEncoderDecoderModel(
    Transformer(tiny.TARGET),
    None,
    *(vocabulary, vocabulary),
    sampling=Sampling(0.0),
    gamma=3,
    drafter="copy",
    copy_match=1,
  )
  params = tiny.variables(model)["params"]
  assert set(params) == {"target"}
  plain, _ = predict(tiny.plain(vocabulary), params["target"], batch)
  np.testing.assert_array_equal(predict(model, params, batch)[0], plain)


@pytest.mark.parametrize(
  ("bad", "message"),
  [
    ({"decoder_params": {"temperature": 0.5}}, "decoder_params must be empty"),
    ({"prompt_with_targets": True}, "not supported"),
  ],
)
def test_unsupported_requests_are_refused(vocabulary, batch, bad, message):
  model = tiny.speculative(vocabulary)
  with pytest.raises(ValueError, match=message):
    model.predict_batch_with_aux(tiny.variables(model)["params"], batch, **bad)
