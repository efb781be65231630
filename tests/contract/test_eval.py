"""evaluate() on a tiny random network: seqio's metrics of what infer() writes."""

import functools
import json
import shutil

import jax.numpy as jnp
import pytest
import seqio
from t5x import eval as t5x_eval
from t5x import partitioning, utils

from tests.contract.conftest import (
  IS_RUNTIME,
  dataset_config,
  records,
  register_task,
  result_path,
  run,
  runtime_only,
  sampler,
  tiny_model,
)

TASK = "contract_eval"


def texts(targets, predictions):
  return {"texts": seqio.metrics.Text(json.dumps(list(predictions)))}


def likelihood(targets, scores):
  return {"likelihood": float(sum(scores))}


def evaluate(checkpoint, output, metrics=(texts, likelihood), mode="specific"):
  name = register_task(f"{TASK}_{len(metrics)}", metrics=metrics)
  if not IS_RUNTIME:  # seqio's JSONLogger makes no folder, and upstream none for it.
    (output / "inference_eval").mkdir(parents=True, exist_ok=True)
  t5x_eval.evaluate(
    model=tiny_model(decode_fn=sampler(0.0)),
    dataset_cfg=dataset_config(mixture_or_task_name=name),
    restore_checkpoint_cfg=utils.RestoreCheckpointConfig(
      path=str(checkpoint), mode=mode, dtype="float32"
    ),
    partitioner=partitioning.PjitPartitioner(num_partitions=1),
    output_dir=str(output),
    # T5X says no types; the network insists on whole tokens.
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


@pytest.mark.slow
def test_metrics_are_of_what_infer_writes(checkpoint, tmp_path):
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
  folder, output = tmp_path / "checkpoints", tmp_path / "eval"
  for step in (1, 12, 2):
    shutil.copytree(checkpoint, folder / f"checkpoint_{step}")
    found = evaluate(folder, output, mode="all")
  assert len(found) == 3
  done = (output / f"eval.{TASK}_2.ckpt").read_text().split("\n")
  assert {path.rsplit("_")[-1] for path in done} == {"1", "2", "12"}


@runtime_only
def test_what_has_no_metrics_is_said(checkpoint, tmp_path):
  with pytest.raises(ValueError, match="has no metrics, or no split 'test'"):
    evaluate(checkpoint, tmp_path / "eval", metrics=())
  assert not (tmp_path / "eval").exists()


@runtime_only
def test_a_folder_without_checkpoints_is_said(tmp_path):
  with pytest.raises(ValueError, match="'all' needs a folder of checkpoints"):
    evaluate(tmp_path, tmp_path / "eval", mode="all")
