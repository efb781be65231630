"""models.EncoderDecoderModel and DecoderOnlyModel on tiny random networks."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tensorflow as tf
from t5x import decoding, infer, models

from tests.contract.conftest import (
  EXPECTED_INPUTS,
  inputs_of,
  records,
  result_path,
  run,
  sampler,
  save_checkpoint,
  tiny_decoder_only,
  tiny_model,
  tiny_state,
)

pytestmark = pytest.mark.slow

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
  return tiny_state(model).params


def predict(model, params, batch=BATCH, **kwargs):
  run = functools.partial(model.predict_batch_with_aux, **kwargs)
  return jax.jit(run)(params, batch)


def check_several_decodes(*model_inputs, shape):
  settings = {"num_decodes": 3, "rng": jax.random.PRNGKey(3)}
  decodes, aux = predict(*model_inputs, return_all_decodes=True, **settings)
  assert decodes.shape == shape
  assert (np.diff(aux["scores"], axis=1) >= 0).all()
  best_decodes, best_aux = predict(*model_inputs, **settings)
  np.testing.assert_array_equal(best_decodes, decodes[:, -1])
  np.testing.assert_allclose(best_aux["scores"], aux["scores"][:, -1])
  return decodes


def test_several_decodes_are_sorted_by_score(model, params):
  check_several_decodes(model, params, BATCH, shape=(2, 3, 6))


def test_default_decoder_params_and_arguments():
  seen = {}

  def decode_fn(**kwargs):
    seen.update(kwargs)
    decodes = jnp.zeros((2, kwargs["num_decodes"], 6), jnp.int32)
    return decodes, jnp.zeros((2, kwargs["num_decodes"]))

  defaults = models.DecoderParams(num_decodes=2, return_all_decodes=True)
  model = tiny_model(decode_fn=decode_fn, default_decoder_params=defaults)
  params = tiny_state(model).params
  decodes, _ = model.predict_batch_with_aux(params, BATCH, decoder_params={"alpha": 3})
  assert decodes.shape == (2, 2, 6)
  assert seen["eos_id"] == 1
  assert seen["alpha"] == 3
  assert seen["cache_offset"] == 0
  assert "decode_rng" not in seen
  assert not seen["inputs"].any()


def test_two_keys_are_refused(model, params):
  with pytest.raises(ValueError, match="decode_rng"):
    model.predict_batch_with_aux(
      params,
      BATCH,
      rng=jax.random.PRNGKey(0),
      decoder_params={"decode_rng": jax.random.PRNGKey(1)},
    )


# ---- Decoder-only models. ----

LENGTHS = {"inputs": 6, "targets": 4}
# Prompts of four tokens, one token, and no tokens.
EXAMPLES = [([50, 60, 70, 80], [90, 1]), ([99], [98, 97, 1]), ([], [66, 1])]


def converted(lengths=LENGTHS):
  """Returns `EXAMPLES` as a batch of the model's feature converter."""
  dataset = tf.data.Dataset.from_generator(
    lambda: ({"inputs": i, "targets": t} for i, t in EXAMPLES),
    output_signature=dict.fromkeys(LENGTHS, tf.TensorSpec((None,), tf.int32)),
  )
  if "inputs" not in lengths:
    dataset = dataset.map(lambda row: {"targets": row["targets"]})
  rows = models.DecoderOnlyModel.FEATURE_CONVERTER_CLS(pack=False)(dataset, lengths)
  rows = list(rows.as_numpy_iterator())
  return {name: jnp.stack([row[name] for row in rows]) for name in rows[0]}


@pytest.fixture(scope="module")
def prompts():
  return converted()


@pytest.fixture(scope="module")
def prompt_params():
  return tiny_state(tiny_decoder_only()).params


def test_the_converter_joins_prompts_and_targets(prompts):
  joined = [50, 60, 70, 80, 90, 1]
  assert prompts["decoder_target_tokens"][0].tolist() == [*joined, 0, 0, 0, 0]
  assert prompts["decoder_input_tokens"][0].tolist() == [0, *joined, 0, 0, 0]
  assert prompts["decoder_causal_attention"].sum(axis=1).tolist() == [5, 2, 1]
  assert prompts["decoder_loss_weights"].sum(axis=1).tolist() == [2, 3, 2]


def test_greedy_outputs_are_the_network_s_argmax_tokens_without_the_prompt(
  prompt_params, prompts
):
  tokens, aux = predict(
    tiny_decoder_only(decode_fn=sampler(0.0)), prompt_params, prompts
  )
  assert tokens.shape == (3, 10)
  np.testing.assert_array_equal(aux["scores"], 0.0)

  @jax.jit
  def logits_of(sequence):
    return tiny_decoder_only().module.apply(
      {"params": prompt_params}, sequence, jnp.ones_like(sequence), enable_dropout=False
    )[0]

  for row, (prompt, _) in zip(np.asarray(tokens), EXAMPLES, strict=True):
    # The prompt takes a part of a row's length.
    room = 10 - len(prompt)
    length = list(row).index(1) + 1 if 1 in row[:room] else room
    assert not row[length:].any()
    # Attention is causal, so later tokens change no earlier logits.
    sequence = np.zeros((1, 11), np.int32)
    sequence[0, 1 : 1 + len(prompt) + length] = [*prompt, *row[:length]]
    logits = logits_of(sequence)
    expected = logits[len(prompt) : len(prompt) + length].argmax(axis=-1)
    np.testing.assert_array_equal(row[:length], expected)


def test_targets_in_the_batch_do_not_change_predictions(prompt_params, prompts):
  model = tiny_decoder_only(decode_fn=sampler(0.0))
  changed = {
    **prompts,
    "decoder_target_tokens": prompts["decoder_target_tokens"] * 0 + 7,
  }
  mask = prompts["decoder_causal_attention"]
  inputs = prompts["decoder_input_tokens"]
  changed["decoder_input_tokens"] = jnp.where(mask, inputs, 77)
  expected, _ = predict(model, prompt_params, prompts)
  np.testing.assert_array_equal(predict(model, prompt_params, changed)[0], expected)


def test_several_decodes_of_prompts_are_sorted_by_score(prompt_params, prompts):
  model = tiny_decoder_only(decode_fn=sampler(1.0))
  decodes = check_several_decodes(model, prompt_params, prompts, shape=(3, 3, 10))
  assert not any(decodes[0, :, 10 - 4 :].any(axis=1))


def test_scores_cover_only_the_targets(prompt_params, prompts):
  model = tiny_decoder_only()
  distribution = jax.nn.log_softmax(
    jax.jit(model._compute_logits)(prompt_params, prompts)
  )
  expected = []
  for row, (prompt, target) in zip(distribution, EXAMPLES, strict=True):
    places = len(prompt) + np.arange(len(target))
    expected.append(row[places, np.array(target)].sum())
  scores = jax.jit(model.score_batch)(prompt_params, prompts)
  np.testing.assert_allclose(scores, expected, rtol=1e-5)


def test_a_batch_without_prompts_is_refused(prompt_params):
  batch = converted({"targets": 4})
  with pytest.raises(ValueError, match=r"inputs.*and.*targets"):
    tiny_decoder_only().predict_batch_with_aux(prompt_params, batch)


def test_infer_writes_continuations_of_the_prompts(tmp_path):
  run(
    save_checkpoint(tmp_path / "model", tiny_state(tiny_decoder_only())),
    tmp_path / "out",
    "predict_with_aux",
    model=tiny_decoder_only(decode_fn=sampler(0.0)),
    write_fn=functools.partial(infer.write_inferences_to_file, output_ids=True),
  )
  rows = records(result_path(tmp_path / "out", "predict_with_aux"))
  assert inputs_of(rows) == EXPECTED_INPUTS
  assert all(len(row["prediction_tokens"]) <= 24 + 12 for row in rows)
  assert all("scores" in row["aux"] for row in rows)
