"""The decoder-only T5X models: predictions, statistics, restoring, refusals."""

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import seqio
import tensorflow as tf
from t5x import decoding, models, utils

from specdec_t5x.core.distributions import Sampling
from specdec_t5x.data import language_modeling
from specdec_t5x.t5x_bridge import preflight, writer
from tests.t5x_bridge import tiny, tiny_gpt

PROMPTS = [[5, 6, 7, 8, 9, 10], [5, 6], [], [12, 1]]
ROOM = tiny_gpt.LENGTHS["targets"]


@pytest.fixture(scope="module")
def batch():
  """`PROMPTS`, each with the same targets, as T5X's feature converter makes them."""
  dataset = tf.data.Dataset.from_generator(
    lambda: ({"inputs": prompt, "targets": [20, 21, 1]} for prompt in PROMPTS),
    output_signature=dict.fromkeys(tiny_gpt.LENGTHS, tf.TensorSpec((None,), tf.int32)),
  )
  convert = seqio.DecoderFeatureConverter(pack=False)
  rows = list(convert(dataset, tiny_gpt.LENGTHS).as_numpy_iterator())
  return {name: jnp.stack([row[name] for row in rows]) for name in rows[0]}


@pytest.fixture(scope="module")
def params(vocabulary):
  return tiny.variables(tiny_gpt.speculative(vocabulary))["params"]


@pytest.fixture(scope="module")
def expected(vocabulary, params, batch):
  """T5X's own greedy outputs, cut to the room of the targets."""
  greedy = lambda **kwargs: decoding.temperature_sample(temperature=0.0, **kwargs)
  target = tiny_gpt.GptTransformer(tiny_gpt.TARGET)
  t5x_model = models.DecoderOnlyModel(target, vocabulary, None, greedy)
  return tiny.predict(t5x_model, params["target"], batch)[0][:, :ROOM]


@pytest.mark.parametrize(
  "settings",
  [
    {"gamma": 15},
    {"rule": "kseq", "num_candidates": 2},
    {"drafter": "copy", "draft": None},
  ],
  ids=lambda settings: "-".join(map(str, settings.values())),
)
def test_greedy_tokens_are_those_of_t5x_temperature_sample(
  vocabulary, params, batch, expected, settings
):
  model = tiny_gpt.speculative(vocabulary, **settings)
  tokens, aux = tiny.predict(model, params, batch)
  np.testing.assert_array_equal(tokens, expected)
  np.testing.assert_array_equal(aux["scores"], 0.0)
  assert (aux["tokens"] <= ROOM).all()


def test_plain_decoding_and_statistics(vocabulary, params, batch, expected):
  tokens, aux = tiny.predict(tiny_gpt.plain(vocabulary), params, batch)
  np.testing.assert_array_equal(tokens, expected)
  np.testing.assert_array_equal(aux["tokens"], aux["target_calls"])
  assert set(aux) == {"scores", *writer.COUNTS}


def test_several_decodes_are_sorted_by_score(vocabulary, params, batch):
  count = models.DecoderParams(num_decodes=3, return_all_decodes=True)
  model = tiny_gpt.speculative(vocabulary, Sampling(1.0), default_decoder_params=count)
  tokens, aux = tiny.predict(model, params, batch)
  assert tokens.shape == (len(PROMPTS), 3, ROOM)
  assert (np.diff(aux["scores"], axis=1) >= 0).all()


def test_score_is_the_targets_log_likelihood(vocabulary, params, batch):
  score = jax.jit(tiny_gpt.speculative(vocabulary).score_batch)
  alone = jax.jit(tiny_gpt.plain(vocabulary).score_batch)(params, batch)
  np.testing.assert_allclose(score(params, batch), alone, rtol=1e-6)
  assert (np.asarray(alone) < 0).all()


def test_the_pair_is_checked_and_restored(vocabulary, tmp_path):
  paths = {
    "target": tiny.save_t5x(tmp_path / "target", tiny_gpt.TARGET, seed=1),
    "draft": tiny.save_orbax(tmp_path / "draft", tiny_gpt.DRAFT, seed=2),
  }
  (tmp_path / "text").write_text("a man sees the dog\n")
  task = language_modeling.language_modeling_from_files(
    "decoder_only_task", {"test": str(tmp_path / "text")}, vocabulary, prompt_words=2
  )
  dataset_cfg = utils.DatasetConfig(task, tiny_gpt.LENGTHS, "test", 1, False, 0)
  model = tiny_gpt.speculative(vocabulary)
  preflight.check_run(dataset_cfg, model, str(tmp_path), paths)
  restored = tiny.restored(model, paths)
  for name, config in (("target", tiny_gpt.TARGET), ("draft", tiny_gpt.DRAFT)):
    seed = 1 if name == "target" else 2
    saved = tiny.state(tiny_gpt.GptTransformer(config), seed).params
    chex.assert_trees_all_equal(restored.params[name], saved)


@pytest.mark.parametrize(
  ("bad", "message"),
  [
    ({"inputs_bidirectional_attention": True}, "causal in the prompt"),
    ({"task_feature_lengths": {"targets": 8}}, "must give 'inputs'"),
  ],
)
def test_bad_settings_are_refused(vocabulary, bad, message):
  with pytest.raises(ValueError, match=message):
    tiny_gpt.speculative(vocabulary, **bad)


def test_a_batch_without_prompts_is_refused(vocabulary, params, batch):
  model = tiny_gpt.speculative(vocabulary)
  del (batch := dict(batch))["decoder_causal_attention"]
  with pytest.raises(ValueError, match="which marks the prompts"):
    model.predict_batch_with_aux(params, batch)
