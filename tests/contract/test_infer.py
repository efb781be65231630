"""infer() and evaluate() on a tiny random network: files, resuming, shards, metrics."""

import functools
import json
import shutil

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import seqio
import tensorflow as tf
from t5x import eval as t5x_eval
from t5x import infer, partitioning, utils

from tests import processes
from tests.contract.conftest import (
  EXPECTED_INPUTS,
  IS_RUNTIME,
  LENGTHS,
  TASK,
  VOCABULARY,
  Killed,
  dataset_config,
  dying_writer,
  inputs_of,
  records,
  register_task,
  result_path,
  run,
  runtime_only,
  sampler,
  tiny_model,
  tiny_state,
  writer,
)

pytestmark = pytest.mark.slow


def test_predict_writes_one_line_per_example_in_order(whole):
  rows = records(result_path(whole))
  assert inputs_of(rows) == EXPECTED_INPUTS
  assert all(set(row) == {"inputs", "prediction"} for row in rows)
  assert all(
    set(row["inputs"]) == {"inputs_pretokenized", "targets_pretokenized"}
    for row in rows
  )
  assert (whole / f"{result_path(whole).name}.COMPLETED").exists()
  assert not list(whole.glob("tmp-*"))
  assert (whole / "config.gin").exists()
  assert "Total number of parameters" in (whole / "model-info.txt").read_text()


@runtime_only
@pytest.mark.parametrize("name", ["of test[:4]", "a*b", "[x] ?"])
def test_the_output_folder_may_have_any_name(checkpoint, whole, tmp_path, name):
  with pytest.raises(Killed):
    run(checkpoint, tmp_path / name, write_fn=dying_writer)
  run(checkpoint, tmp_path / name)
  expected = records(result_path(whole))
  assert records(result_path(tmp_path / name)) == expected


@seqio.map_over_dataset
def shout_where_long(example):
  text = example["inputs"]
  if tf.strings.length(text) > 8:  # Only AutoGraph can translate this branch.
    text = tf.strings.upper(text)
  return {**example, "inputs": text}


def test_a_task_may_need_autograph(checkpoint, tmp_path):
  task = register_task(f"{TASK}_autograph", first=[shout_where_long])
  run(checkpoint, tmp_path, dataset={"mixture_or_task_name": task})
  rows = records(next(tmp_path.glob("*.jsonl-00000-of-00001")))
  expected = [x.upper() if len(x) > 8 else x for x in EXPECTED_INPUTS]
  assert inputs_of(rows) == expected != EXPECTED_INPUTS


@seqio.map_over_dataset
def join_numbers(example):
  return {**example, "inputs": tf.strings.join([example["inputs"], 1.5])}


def test_a_type_error_of_a_task_is_shown(checkpoint, tmp_path):
  task = register_task(f"{TASK}_type_error", first=[join_numbers])
  with pytest.raises(TypeError, match=r"1\.5"):
    run(checkpoint, tmp_path, dataset={"mixture_or_task_name": task})


def test_predict_with_aux_adds_the_scores(checkpoint, tmp_path):
  write = functools.partial(infer.write_inferences_to_file, output_ids=True)
  run(checkpoint, tmp_path, "predict_with_aux", write_fn=write)
  rows = records(result_path(tmp_path, "predict_with_aux"))
  assert inputs_of(rows) == EXPECTED_INPUTS
  for row in rows:
    assert list(row) == ["inputs", "prediction", "prediction_tokens", "aux"]
    assert row["aux"]["scores"] < 0
    assert 0 not in row["prediction_tokens"]


def test_score_is_the_likelihood_of_the_targets(checkpoint, tmp_path):
  run(checkpoint, tmp_path, "score")
  rows = records(result_path(tmp_path, "score"))
  assert inputs_of(rows) == EXPECTED_INPUTS
  model = tiny_model()
  state = tiny_state(tiny_model())
  row = rows[3]

  def pad(ids, n):
    return np.array([[*ids, *[0] * (n - len(ids))]], np.int32)

  source = [*VOCABULARY.encode(row["inputs"]["inputs_pretokenized"]), 1]
  target = [*VOCABULARY.encode(row["inputs"]["targets_pretokenized"]), 1]
  batch = {
    "encoder_input_tokens": pad(source, 24),
    "decoder_target_tokens": pad(target, 12),
    "decoder_input_tokens": pad([0, *target[:-1]], 12),
    "decoder_loss_weights": pad([1] * len(target), 12),
  }
  batch = jax.tree.map(jnp.asarray, batch)
  logits = jax.jit(model._compute_logits)(state.params, batch)
  distribution = np.asarray(jax.nn.log_softmax(logits))[0]
  expected = sum(distribution[i, token] for i, token in enumerate(target))
  np.testing.assert_allclose(row["score"], expected, rtol=1e-4)


def test_a_killed_run_continues_with_the_next_chunk(checkpoint, whole, tmp_path):
  with pytest.raises(Killed):
    run(checkpoint, tmp_path, write_fn=dying_writer)
  assert not result_path(tmp_path).exists()
  (directory,) = tmp_path.glob(f"tmp-{TASK}-00000-of-00001")
  assert (directory / f"{result_path(tmp_path).name}-chunk00000.COMPLETED").exists()
  written = []
  run(checkpoint, tmp_path, write_fn=writer(lambda path: written.append(path[-6:])))
  assert written == ["k00001", "k00002"]  # The first chunk is not decoded again.
  # Keys depend on the chunk, so samples equal the undisturbed run's samples.
  assert result_path(tmp_path).read_text() == result_path(whole).read_text()


def test_a_finished_run_is_not_repeated(checkpoint, whole):
  before = result_path(whole).stat().st_mtime_ns
  run(checkpoint, whole, write_fn=None)
  assert result_path(whole).stat().st_mtime_ns == before


@runtime_only
def test_a_finished_run_with_different_settings_is_refused(
  checkpoint, whole, tmp_path, capsys
):
  other = {"task_feature_lengths": {**LENGTHS, "targets": 4}}
  with pytest.raises(ValueError, match="finished run with other settings: lengths was"):
    run(checkpoint, whole, dataset=other)
  # Upstream's markers are empty, so there are no settings to compare.
  (tmp_path / f"{result_path(whole).name}.COMPLETED").touch()
  run(checkpoint, tmp_path, dataset=other)
  assert "settings of the earlier run are unknown" in capsys.readouterr().err


@runtime_only
def test_a_run_does_not_continue_after_a_change_of_its_texts(checkpoint, tmp_path):
  plain_tasks = pytest.importorskip("t5x.plain_tasks")
  dataset = {"mixture_or_task_name": f"{TASK}_changing"}
  features = {name: plain_tasks.PlainFeature(VOCABULARY) for name in LENGTHS}

  def change_to(target):
    texts = [(text, target) for text in EXPECTED_INPUTS]

    def count(split):
      return len(texts)

    def read(split):
      return iter(texts)

    name = dataset["mixture_or_task_name"]
    task = plain_tasks.PlainTask(name, features, ("test",), count, read)
    plain_tasks.register(task)

  change_to("a target")
  with pytest.raises(Killed):
    run(checkpoint, tmp_path, dataset=dataset, write_fn=dying_writer)
  change_to("another target")
  with pytest.raises(ValueError, match=r"unfinished run .* digest of the texts was"):
    run(checkpoint, tmp_path, dataset=dataset)
  change_to("a target")
  run(checkpoint, tmp_path, dataset=dataset)
  change_to("another target")
  with pytest.raises(ValueError, match=r"finished run .* digest of the texts was"):
    run(checkpoint, tmp_path, dataset=dataset)


def test_joined_shards_equal_the_file_of_one_job(checkpoint, tmp_path):
  run(checkpoint, tmp_path / "one", temperature=0.0)
  for shard in (0, 1):
    run(checkpoint, tmp_path, temperature=0.0, shard_id=shard, num_shards=2)
  processes.join_shards(tmp_path)
  expected = result_path(tmp_path / "one").read_bytes()
  assert result_path(tmp_path).read_bytes() == expected


def write(tmp_path, predictions, mode="predict", aux=None, **kwargs):
  ds = tf.data.Dataset.from_tensor_slices(
    {
      "inputs": np.array([[5, 1], [6, 1]]),
      "inputs_pretokenized": ["a", "b"],
      "id": [1, 2],
    }
  )
  kwargs.setdefault("vocabulary", VOCABULARY)
  infer.write_inferences_to_file(
    str(tmp_path / "w"), (predictions, aux or {}), ds, mode, **kwargs
  )
  return records(tmp_path / "w")


def test_the_writer_follows_its_options(tmp_path):
  tokens = np.array([[100, 101, 1, 0], [102, 0, 103, 1]], np.int32)
  rows = write(tmp_path, tokens, output_ids=True)
  assert [row["prediction_tokens"] for row in rows] == [[100, 101, 1], [102]]
  assert rows[0]["prediction"] == "ab"
  assert rows[0]["inputs"] == {"inputs_pretokenized": "a"}
  rows = write(tmp_path, np.stack([tokens, tokens], 1))
  assert rows[0]["prediction"] == ["ab", "ab"]
  aux = {"scores": [0.5, 1.5], "pair": [np.arange(2), np.arange(2)]}
  rows = write(tmp_path, tokens, "predict_with_aux", aux)
  assert rows[1]["aux"] == {"scores": 1.5, "pair": [0, 1]}
  rows = write(tmp_path, [-1.0, -2.0], "score", vocabulary=None)
  assert rows[1] == {"inputs": {"inputs_pretokenized": "b"}, "score": -2.0}


def test_the_writer_refuses_invalid_options(tmp_path):
  for mode, kwargs, message in (
    ("guess", {}, "mode"),
    ("predict", {"vocabulary": None}, "vocabulary"),
  ):
    with pytest.raises(ValueError, match=message):
      write(tmp_path, np.array([[100]], np.int32), mode, **kwargs)


# ---- evaluate(): seqio's metrics of infer()'s results. ----


def texts(targets, predictions):
  return {"texts": seqio.metrics.Text(json.dumps(list(predictions)))}


def likelihood(targets, scores):
  return {"likelihood": float(sum(scores))}


def evaluate(checkpoint, output, metrics=(texts, likelihood), mode="specific"):
  name = register_task(f"contract_eval_{len(metrics)}", metrics=metrics)
  if not IS_RUNTIME:  # Neither seqio's JSONLogger nor upstream makes the folder.
    (output / "inference_eval").mkdir(parents=True, exist_ok=True)
  t5x_eval.evaluate(
    model=tiny_model(decode_fn=sampler(0.0)),
    dataset_cfg=dataset_config(mixture_or_task_name=name),
    restore_checkpoint_cfg=utils.RestoreCheckpointConfig(
      path=str(checkpoint), mode=mode, dtype="float32"
    ),
    partitioner=partitioning.PjitPartitioner(num_partitions=1),
    output_dir=str(output),
    # T5X gives no types, and the network requires integer tokens.
    train_state_initializer_cls=functools.partial(
      utils.TrainStateInitializer,
      input_types={
        f"{part}_input_tokens": jnp.int32 for part in ("encoder", "decoder")
      },
    ),
    inference_evaluator_cls=functools.partial(
      seqio.Evaluator, logger_cls=[seqio.JSONLogger]
    ),
  )
  return records(output / "inference_eval" / f"{name}-metrics.jsonl")


def test_metrics_equal_those_of_infer_s_files(checkpoint, tmp_path):
  run(checkpoint, tmp_path / "predict", temperature=0.0)
  run(checkpoint, tmp_path / "score", "score")
  rows = records(result_path(tmp_path / "predict"))
  scores = records(result_path(tmp_path / "score", "score"))
  (found,) = evaluate(checkpoint, tmp_path / "eval")
  assert found["step"] == 7
  assert json.loads(found["texts"]) == [row["prediction"] for row in rows]
  total = sum(row["score"] for row in scores)
  assert found["likelihood"] == pytest.approx(total, rel=1e-5)


def test_all_checkpoints_are_evaluated_once(checkpoint, tmp_path):
  folder = tmp_path / "checkpoints"
  output = tmp_path / "eval"
  for steps in ((12,), (1, 2)):
    for step in steps:
      shutil.copytree(checkpoint, folder / f"checkpoint_{step}")
    found = evaluate(folder, output, mode="all")
  assert len(found) == 3
  done = (output / "eval.contract_eval_2.ckpt").read_text().split("\n")
  assert {path.rsplit("_")[-1] for path in done} == {"1", "2", "12"}


@runtime_only
def test_a_task_without_metrics_is_refused(checkpoint, tmp_path):
  with pytest.raises(ValueError, match="has no metrics, or no split 'test'"):
    evaluate(checkpoint, tmp_path / "eval", metrics=())
  assert not (tmp_path / "eval").exists()


@runtime_only
def test_a_folder_without_checkpoints_is_refused(tmp_path):
  with pytest.raises(ValueError, match="'all' needs a folder with checkpoints"):
    evaluate(tmp_path, tmp_path / "eval", mode="all")
