"""The T5X models of a pair: outputs, statistics, settings and restoring."""

import functools

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import seqio
import tensorflow as tf
from t5x import decoding, models, utils

from specdec_t5x import tuning
from specdec_t5x.core.distributions import Sampling
from specdec_t5x.data import tasks
from specdec_t5x.decoding.policies import CostAware
from specdec_t5x.decoding.state import row_keys
from specdec_t5x.native import library
from specdec_t5x.network.functional import network_for
from specdec_t5x.t5x_bridge import preflight, writer
from specdec_t5x.t5x_bridge.examples import EXAMPLE
from tests.t5x_bridge import tiny, tiny_gpt

pytestmark = pytest.mark.slow

KINDS = {"t5": tiny, "gpt": tiny_gpt}
PROMPTS = [[5, 6, 7, 8, 9, 10], [5, 6], [], [12, 1]]
LENGTH = 12
each_kind = pytest.mark.parametrize("kind", KINDS)


@pytest.fixture(scope="module")
def batches(batch):
  """Returns batches by kind; T5X's feature converter makes the prompts."""
  dataset = tf.data.Dataset.from_generator(
    lambda: ({"inputs": prompt, "targets": [20, 21, 1]} for prompt in PROMPTS),
    output_signature=dict.fromkeys(tiny_gpt.LENGTHS, tf.TensorSpec((None,), tf.int32)),
  )
  convert = seqio.DecoderFeatureConverter(pack=False)
  rows = list(convert(dataset, tiny_gpt.LENGTHS).as_numpy_iterator())
  prompts = {name: jnp.stack([row[name] for row in rows]) for name in rows[0]}
  return {"t5": batch, "gpt": prompts}


def predict(model, batch, params=None, **kwargs):
  return tiny.predict(model, params or tiny.variables(model)["params"], batch, **kwargs)


@pytest.fixture(scope="module")
def params(vocabulary):
  return {
    name: tiny.variables(kind.speculative(vocabulary))["params"]
    for name, kind in KINDS.items()
  }


@pytest.fixture(scope="module")
def expected(vocabulary, params, batches):
  """Returns T5X's greedy outputs by kind, cut to the length of the targets."""
  sample = functools.partial(decoding.temperature_sample, temperature=0.0)
  found = {}
  rooms = {"t5": LENGTH, "gpt": tiny_gpt.LENGTHS["targets"]}
  for kind, room in rooms.items():
    model = tiny.t5x_model(network_for(KINDS[kind].TARGET), vocabulary, sample)
    found[kind] = predict(model, batches[kind], params[kind]["target"])[0][:, :room]
  return found


@pytest.mark.parametrize(
  ("kind", "settings"),
  [
    ("t5", {"gamma": 1}),
    ("gpt", {"gamma": 1, "rule": "kseq", "num_candidates": 2}),
  ],
  ids=str,
)
def test_greedy_tokens_equal_t5x_temperature_sample(
  vocabulary, batches, params, expected, kind, settings
):
  """Greedy tokens equal T5X's; tests/test_table.py covers every drafter."""
  model = KINDS[kind].speculative(vocabulary, **settings)
  tokens, aux = predict(model, batches[kind], params[kind])
  np.testing.assert_array_equal(tokens, expected[kind])
  np.testing.assert_array_equal(aux["scores"], 0.0)
  assert (aux["tokens"] <= expected[kind].shape[1]).all()
  assert aux["drafted"].sum() > 0
  assert "decode_state" not in aux


@each_kind
def test_plain_decoding_makes_a_call_per_token(
  vocabulary, batches, params, expected, kind
):
  model = KINDS[kind].plain(vocabulary)
  tokens, aux = predict(model, batches[kind], params[kind])
  np.testing.assert_array_equal(tokens, expected[kind])
  np.testing.assert_array_equal(aux["tokens"], aux["target_calls"])
  assert set(aux) == {"scores", *writer.COUNTS}


def test_a_batch_with_the_state_of_a_policy_returns_the_new_state(
  vocabulary, batch, params, expected
):
  model = tiny.speculative(vocabulary, gamma=1, policy=CostAware((1.0, 1.2)))
  state = {"decode_state": model.decode_state(5)}
  tokens, aux = predict(model, batch, params["t5"], decoder_params=state)
  np.testing.assert_array_equal(tokens, expected["t5"])
  assert aux["decode_state"].tried.sum() > 0
  assert tiny.plain(vocabulary).decode_state(5) is None


def test_a_model_uses_the_times_measured_for_its_batch(
  vocabulary, batch, monkeypatch, tmp_path
):
  """Only times for the batch's rows and lengths change the draft length."""
  library.problem()  # The kernels are looked up once per process, in another folder.
  monkeypatch.setenv("SPECDEC_T5X_CACHE", str(tmp_path))
  times = {"seconds": (1.0, 9.0), "prepare": (0.5, 0.5)}
  monkeypatch.setattr(tuning, "measure", lambda job, params: times)
  count = models.DecoderParams(num_decodes=2)
  settings = {"gamma": 1, "policy": "auto", "default_decoder_params": count}
  model = tiny.speculative(vocabulary, **settings)
  paths = tiny.save_pair(tmp_path)

  def drafted():
    return predict(model, batch)[1]["drafted"].sum()

  with pytest.raises(ValueError, match=r"needs times of 10 rows .* known for \[\]"):
    drafted()
  tiny.restored(model, paths, examples=4)
  with pytest.raises(ValueError, match=f"known for .*8, {LENGTH}"):
    drafted()
  tiny.restored(model, paths, examples=5)
  assert drafted() == 0
  assert model.decode_state(5) is None
  assert list(model.tuned) == [(8, LENGTH), (10, LENGTH)]


@pytest.mark.parametrize(
  ("kind", "make", "settings"),
  [("t5", tiny.speculative, {"gamma": 1}), ("gpt", tiny_gpt.plain, {})],
  ids=KINDS,
)
def test_several_decodes_are_sorted_by_score(
  vocabulary, batches, expected, kind, make, settings
):
  count = models.DecoderParams(num_decodes=4, return_all_decodes=True)
  settings = {"default_decoder_params": count, **settings}
  batch = batches[kind]
  model = make(vocabulary, Sampling(1.0), **settings)
  tokens, aux = predict(model, batch)
  rows, room = expected[kind].shape
  assert tokens.shape == (rows, 4, room)
  assert (np.diff(aux["scores"], axis=1) >= 0).all()
  assert len({row.tobytes() for row in np.asarray(tokens[0])}) > 1
  best, best_aux = predict(model, batch, return_all_decodes=False)
  np.testing.assert_array_equal(best, tokens[:, -1])
  np.testing.assert_array_equal(best_aux["scores"], aux["scores"][:, -1])


@each_kind
def test_scores_are_the_target_s_log_likelihoods(vocabulary, batches, params, kind):
  plain = jax.jit(KINDS[kind].plain(vocabulary).score_batch)
  alone = plain(params[kind], batches[kind])
  speculative = jax.jit(KINDS[kind].speculative(vocabulary).score_batch)
  scores = speculative(params[kind], batches[kind])
  np.testing.assert_allclose(scores, alone, rtol=1e-6)
  assert (np.asarray(alone) < 0).all()


def test_bfloat16_parameters_decode_like_equal_float32_parameters(vocabulary, batch):
  model = tiny.plain(vocabulary, Sampling(1.0))

  # NumPy casts without compiling.
  def cast(params, dtype):
    return jax.tree.map(lambda x: np.asarray(x).astype(dtype), params)

  drawn = tiny.variables(model)["params"]
  params = cast(drawn, jnp.bfloat16)
  wide = cast(params, jnp.float32)
  tokens, aux = predict(model, batch, params)
  expected, expected_aux = predict(model, batch, wide)
  np.testing.assert_array_equal(tokens, expected)
  jax.tree.map(np.testing.assert_array_equal, aux, expected_aux)
  with pytest.raises(AssertionError):  # The cast has changed the numbers.
    chex.assert_trees_all_equal(wide, drawn)


def test_a_missing_draft_is_refused(vocabulary, unchecked):
  """tests/errors/cases.toml has further refusals, with the messages of the commands."""
  with pytest.raises(ValueError, match="'draft_model' needs a draft network, got None"):
    tiny.speculative(vocabulary, draft=None)


def test_keys_depend_on_seed_task_and_place(vocabulary, batch):
  """docs/t5x_commands.md describes the keys."""
  model = tiny.plain(vocabulary, Sampling(1.0), seed=3)
  params = tiny.variables(model)["params"]
  examples = jnp.array([[9, place] for place in (4, 0, 1, 2, 3)])
  task_key = jax.random.fold_in(jax.random.fold_in(jax.random.key(0), 3), 9)
  keys = jax.vmap(lambda place: jax.random.fold_in(task_key, place))(examples[:, 1])
  settings = {"sampling": Sampling(1.0), "max_length": LENGTH, "eos_id": 1}
  rows = jax.vmap(lambda key: row_keys(key, 1)[0])(keys)
  inputs = batch["encoder_input_tokens"]
  expected = model.decoder.decode(params, inputs, rows, **settings).tokens
  tokens, _ = predict(model, {**batch, EXAMPLE: examples}, params)
  np.testing.assert_array_equal(tokens, expected)


def test_settings_of_a_call_are_refused(vocabulary, batch):
  with pytest.raises(ValueError, match="decoder_params may hold"):
    predict(tiny.speculative(vocabulary), batch, decoder_params={"temperature": 0.5})


def test_an_optimizer_is_refused(vocabulary):
  """T5X's trainer and interactive model ask for the optimizer."""
  with pytest.raises(ValueError, match=r"specdec_t5x.train\. .*specdec_t5x.generate"):
    _ = tiny.speculative(vocabulary).optimizer_def


# ---- Restoring pairs, and refusals before any model work. ----


@pytest.fixture(scope="module")
def paths(tmp_path_factory):
  def saved(kind, format):
    root = tmp_path_factory.mktemp("pair")
    return {
      "target": tiny.save_t5x(root / "target", kind.TARGET, seed=1, format=format),
      "draft": tiny.save_t5x(root / "draft", kind.DRAFT, seed=2, format=format),
    }

  return {
    "t5x": saved(tiny, "t5x"),
    "orbax": saved(tiny, "orbax"),
    "decoder-only": saved(tiny_gpt, "t5x"),
  }


@pytest.mark.parametrize("pair", ["t5x", "orbax", "decoder-only"])
def test_target_and_draft_get_their_parameters(vocabulary, paths, pair):
  kind = tiny_gpt if pair == "decoder-only" else tiny
  model = kind.speculative(vocabulary)
  restored = tiny.restored(model, paths[pair])
  assert int(restored.step) == 7
  for name, config, seed in (("target", kind.TARGET, 1), ("draft", kind.DRAFT, 2)):
    saved = tiny.state(network_for(config), seed).params
    chex.assert_trees_all_equal(restored.params[name], saved)
  assert list(model.tuned) == [(2, tiny.LENGTHS["targets"])]


def test_a_run_is_checked_without_changes(vocabulary, vocabulary_path, paths, tmp_path):
  """tests/errors/cases.toml has further refusals."""
  text = tmp_path / "in.txt"
  text.write_text("a man\n")
  name = tasks.translation_from_files(
    f"preflight_{tmp_path.name}", {"test": (str(text), None)}, vocabulary=vocabulary
  )
  lengths = {"inputs": 8, "targets": 8}
  config = utils.DatasetConfig(name, lengths, "test", 1, shuffle=False, seed=0)

  def check(paths, vocabulary=vocabulary):
    model = tiny.speculative(vocabulary)
    preflight.check_run(config, model, str(tmp_path / "out"), paths)

  check(paths["t5x"])
  with pytest.raises(ValueError, match="needs a path of the network 'draft'"):
    check({"target": paths["t5x"]["target"]})
  other = seqio.SentencePieceVocabulary(vocabulary_path, extra_ids=9)
  with pytest.raises(ValueError, match="ocabular"):
    check(paths["t5x"], other)
  assert not (tmp_path / "out").exists()
