"""models.DecoderOnlyModel on a tiny random network, and infer() with it."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tensorflow as tf
from t5x import infer, models, train_state

from specdec_t5x.network.config import GptConfig
from specdec_t5x.network.gpt import GptTransformer
from tests.contract.conftest import (
  EXPECTED_INPUTS,
  VOCABULARY,
  inputs_of,
  records,
  result_path,
  run,
  sampler,
  save_checkpoint,
)

LENGTHS = {"inputs": 6, "targets": 4}
# Prompts of four, one and no tokens; the converter's own output, checked below.
EXAMPLES = [([50, 60, 70, 80], [90, 1]), ([99], [98, 97, 1]), ([], [66, 1])]


def converted(lengths=LENGTHS):
  """A batch of `EXAMPLES`, as the model's feature converter makes it."""
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
def batch():
  return converted()


def tiny(**kwargs):
  config = GptConfig(
    vocab_size=VOCABULARY.vocab_size,
    emb_dim=16,
    num_heads=2,
    head_dim=8,
    num_layers=2,
    mlp_dim=32,
  )
  return models.DecoderOnlyModel(GptTransformer(config), VOCABULARY, None, **kwargs)


@pytest.fixture(scope="module")
def variables():
  shapes = {"decoder_input_tokens": (1, 10)}
  types = {"decoder_input_tokens": jnp.int32}
  make = lambda key: tiny().get_initial_variables(key, shapes, types)
  return jax.jit(make)(jax.random.PRNGKey(0))


@pytest.fixture(scope="module")
def params(variables):
  return jax.tree.map(lambda x: 3.0 * x, variables["params"])


def predict(params, batch, decode_fn, **kwargs):
  model = tiny(decode_fn=decode_fn)
  run = functools.partial(model.predict_batch_with_aux, **kwargs)
  return jax.jit(run)(params, batch)


def test_the_converter_joins_prompt_and_target(batch):
  joined = [50, 60, 70, 80, 90, 1]
  assert batch["decoder_target_tokens"][0].tolist() == [*joined, 0, 0, 0, 0]
  assert batch["decoder_input_tokens"][0].tolist() == [0, *joined, 0, 0, 0]
  assert batch["decoder_causal_attention"].sum(axis=1).tolist() == [5, 2, 1]
  assert batch["decoder_loss_weights"].sum(axis=1).tolist() == [2, 3, 2]


def test_params_and_axes(variables):
  assert set(variables) == {"params", "params_axes"}


def test_greedy_outputs_are_the_networks_own_without_the_prompt(params, batch):
  tokens, aux = predict(params, batch, sampler(0.0))
  assert tokens.shape == (3, 10)
  np.testing.assert_array_equal(aux["scores"], 0.0)
  for row, (prompt, _) in zip(np.asarray(tokens), EXAMPLES, strict=True):
    # A row has what its prompt leaves of the whole length.
    room = 10 - len(prompt)
    length = list(row).index(1) + 1 if 1 in row[:room] else room
    assert not row[length:].any()
    sequence = jnp.array([[0, *prompt, *row[:length]]])
    logits = tiny().module.apply(
      {"params": params}, sequence, jnp.ones_like(sequence), enable_dropout=False
    )
    expected = logits[0, len(prompt) : len(prompt) + length].argmax(axis=-1)
    np.testing.assert_array_equal(row[:length], expected)


def test_targets_in_the_batch_are_not_read(params, batch):
  decode_fn = sampler(0.0)
  changed = {**batch, "decoder_target_tokens": batch["decoder_target_tokens"] * 0 + 7}
  mask = batch["decoder_causal_attention"]
  inputs = batch["decoder_input_tokens"]
  changed["decoder_input_tokens"] = jnp.where(mask, inputs, 77)
  expected, _ = predict(params, batch, decode_fn)
  np.testing.assert_array_equal(predict(params, changed, decode_fn)[0], expected)


def test_several_decodes_are_sorted_by_score(params, batch):
  key = jax.random.PRNGKey(3)
  settings = {"rng": key, "num_decodes": 3}
  decode_fn = sampler(1.0)
  every, aux = predict(params, batch, decode_fn, return_all_decodes=True, **settings)
  assert every.shape == (3, 3, 10)
  assert (np.diff(aux["scores"], axis=1) >= 0).all()
  assert not any(every[0, :, 10 - 4 :].any(axis=1))
  best, best_aux = predict(params, batch, decode_fn, **settings)
  np.testing.assert_array_equal(best, every[:, -1])
  np.testing.assert_allclose(best_aux["scores"], aux["scores"][:, -1])


def test_scores_are_of_the_targets_alone(params, batch):
  model = tiny()
  distribution = jax.nn.log_softmax(jax.jit(model._compute_logits)(params, batch))
  expected = []
  for row, (prompt, target) in zip(distribution, EXAMPLES, strict=True):
    places = len(prompt) + np.arange(len(target))
    expected.append(row[places, np.array(target)].sum())
  score = functools.partial(model.score_batch, return_intermediates=True)
  scores, intermediates = jax.jit(score)(params, batch)
  np.testing.assert_allclose(scores, expected, rtol=1e-5)
  (token_scores,) = intermediates["decoder"]["token_scores"]
  assert not np.asarray(token_scores)[batch["decoder_loss_weights"] == 0].any()


def test_a_batch_without_prompts_is_refused(params):
  with pytest.raises(ValueError, match=r"both.*inputs.*and.*targets"):
    tiny().predict_batch_with_aux(params, converted({"targets": 4}))


def test_infer_writes_what_follows_the_prompts(params, variables, tmp_path):
  state = train_state.InferenceState.create(variables.copy({"params": params}))
  state = state.replace_step(jnp.asarray(7, jnp.int32))
  run(
    save_checkpoint(tmp_path / "model", state),
    tmp_path / "out",
    "predict_with_aux",
    model=tiny(decode_fn=sampler(0.0)),
    write_fn=functools.partial(infer.write_inferences_to_file, output_ids=True),
  )
  rows = records(result_path(tmp_path / "out", "predict_with_aux"))
  assert inputs_of(rows) == EXPECTED_INPUTS
  assert all(len(row["prediction_tokens"]) <= 24 + 12 for row in rows)
  assert all("scores" in row["aux"] for row in rows)
