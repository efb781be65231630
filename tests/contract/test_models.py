"""models.EncoderDecoderModel on a tiny random network."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from t5x import decoding, models

from tests.contract.conftest import tiny_model, tiny_variables

BATCH = {
  "encoder_input_tokens": jnp.array([[50, 60, 70, 1], [80, 90, 1, 0]]),
  "decoder_input_tokens": jnp.array([[0, 100, 110, 0, 0, 0], [0, 120, 1, 0, 0, 0]]),
  "decoder_target_tokens": jnp.array([[100, 110, 1, 0, 0, 0], [120, 1, 0, 0, 0, 0]]),
  "decoder_loss_weights": jnp.array([[1, 1, 1, 0, 0, 0], [1, 1, 0, 0, 0, 0]]),
}


@pytest.fixture(scope="module")
def model():
  decode_fn = functools.partial(decoding.temperature_sample, topk=0)
  return tiny_model(decode_fn=decode_fn)


@pytest.fixture(scope="module")
def params(model):
  return tiny_variables(model)["params"]


def predict(model, params, **kwargs):
  return jax.jit(functools.partial(model.predict_batch_with_aux, **kwargs))(
    params, BATCH
  )


def test_num_decodes_and_all_decodes(model, params):
  key = jax.random.PRNGKey(0)
  settings = {"num_decodes": 3, "rng": key}
  every, aux = predict(model, params, return_all_decodes=True, **settings)
  assert every.shape == (2, 3, 6)
  assert aux["scores"].shape == (2, 3)
  best, aux_best = predict(model, params, **settings)
  np.testing.assert_array_equal(best, every[:, -1])
  np.testing.assert_allclose(aux_best["scores"], aux["scores"].max(axis=1))


def test_default_decoder_params_and_arguments():
  seen = {}

  def decode_fn(**kwargs):
    seen.update(kwargs)
    decodes = jnp.zeros((2, kwargs["num_decodes"], 6), jnp.int32)
    return decodes, jnp.zeros((2, kwargs["num_decodes"]))

  defaults = models.DecoderParams(num_decodes=2, return_all_decodes=True)
  model = tiny_model(decode_fn=decode_fn, default_decoder_params=defaults)
  params = tiny_variables(model)["params"]
  decodes, _ = model.predict_batch_with_aux(params, BATCH, decoder_params={"alpha": 3})
  assert decodes.shape == (2, 2, 6)
  assert seen["eos_id"] == 1
  assert seen["alpha"] == 3
  assert seen["cache_offset"] == 0
  assert "decode_rng" not in seen
  assert not seen["inputs"].any()


def test_prompts_from_the_targets_are_kept_but_for_eos(model, params):
  decodes, _ = predict(model, params, prompt_with_targets=True)
  assert decodes[0, :2].tolist() == [100, 110]
  assert int(decodes[1, 0]) == 120


def test_two_keys_are_refused(model, params):
  with pytest.raises(ValueError, match="decode_rng"):
    model.predict_batch_with_aux(
      params,
      BATCH,
      rng=jax.random.PRNGKey(0),
      decoder_params={"decode_rng": jax.random.PRNGKey(1)},
    )


def test_score_intermediates(model, params):
  score = functools.partial(model.score_batch, return_intermediates=True)
  scores, intermediates = jax.jit(score)(params, BATCH)
  (token_scores,) = intermediates["decoder"]["token_scores"]
  (weights,) = intermediates["decoder"]["loss_weights"]
  (targets,) = intermediates["decoder"]["target_tokens"]
  np.testing.assert_allclose(token_scores.sum(-1), scores, rtol=1e-5)
  assert not token_scores[weights == 0].any()
  np.testing.assert_array_equal(targets, BATCH["decoder_target_tokens"])
  np.testing.assert_allclose(
    jax.jit(model.score_batch)(params, BATCH), scores, rtol=1e-5
  )
