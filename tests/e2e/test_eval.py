"""`python -m t5x.eval` with our gin files, on generated checkpoints."""

import json
import re

import pytest

from specdec_t5x.data.metrics import bleu
from tests.contract.conftest import runtime_only
from tests.e2e import runs


@pytest.fixture(scope="module")
def evaluate(pair, tmp_path_factory):
  gin_file, draft = pair
  root = tmp_path_factory.mktemp("eval")
  text = str(gin_file.parent / "text.en")
  task = runs.translation("tiny_eval", text, gin_file.parent / "tiny.model")
  (root / "task.gin").write_text(task.replace("None", repr(text)))

  def run(output, config="eval_ende", **bindings):
    drafts = (
      {"DRAFT_CHECKPOINT_PATH": draft, "GAMMA": 3} if config == "eval_ende" else {}
    )
    bindings = {**drafts, "EVAL_OUTPUT_DIR": str(output), **bindings}
    config_file = f"configs/{config}.gin"
    task_file = root / "task.gin"
    runs.completed(config_file, gin_file, task_file, module="t5x.eval", **bindings)
    return [json.loads(line) for line in result_text(output, "metrics").splitlines()]

  return run


def result_text(output, name):
  (file,) = (output / "inference_eval").glob(f"*-{name}.jsonl")
  return file.read_text()


@pytest.mark.slow
def test_metrics_match_the_outputs_of_infer(pair, evaluate, speculative, tmp_path):
  (metrics,) = evaluate(tmp_path / "out")
  text = result_text(tmp_path / "out", "0*")
  outputs = [json.loads(line)["output"] for line in text.splitlines()]
  assert outputs == [record["prediction"] for record in runs.records(speculative)]
  references = (pair[0].parent / "text.en").read_text().splitlines()
  statistics = runs.summary(speculative)["statistics"]
  rates = ("tokens_per_target_call", "alpha_by_counts", "alpha_by_mass")
  expected = {name: pytest.approx(statistics[name]["value"]) for name in rates}
  assert metrics == {"step": 7, **bleu(references, outputs), **expected}


@pytest.mark.slow
def test_without_speculation_a_target_call_gives_one_token(evaluate, tmp_path):
  (plain,) = evaluate(tmp_path, "eval_baseline_ende")
  assert plain["tokens_per_target_call"] == 1
  assert plain.keys() == {"step", "bleu", "tokens_per_target_call"}


@runtime_only
@pytest.mark.parametrize(
  ("bindings", "message"),
  [
    ({"NUM_DECODES": 2, "TEMPERATURE": 1.0}, "needs one output per input"),
    ({"DRAFT_CHECKPOINT_PATH": "nowhere"}, "^t5x.eval: DRAFT_CHECKPOINT_PATH: "),
    ({"EVAL_OUTPUT_DIR": "/proc/out"}, "EVAL_OUTPUT_DIR=/proc/out can't be written to"),
  ],
)
def test_runs_that_cant_be_evaluated_are_refused_before_model_work(
  bindings, message, evaluate, tmp_path
):
  with pytest.raises(SystemExit) as exit_:
    evaluate(tmp_path, **bindings)
  assert re.search(message, exit_.value.code)
  assert not list(tmp_path.iterdir())


@runtime_only
def test_infer_refuses_several_checkpoints(infer, tmp_path):
  mode = {"utils.RestoreCheckpointConfig.mode": "all"}
  with pytest.raises(SystemExit) as exit_:
    infer(tmp_path, config="baseline_ende", **mode)
  assert "mode = 'all' is for t5x.eval" in exit_.value.code
  assert not list(tmp_path.glob("*.jsonl*"))
