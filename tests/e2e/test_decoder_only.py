"""`python -m t5x.infer` with decoder-only networks, on generated checkpoints."""

import json

import pytest

from tests.e2e import runs
from tests.t5x_bridge import tiny, tiny_gpt

pytestmark = pytest.mark.slow

EXAMPLES = 20


@pytest.fixture(scope="session")
def pair(tmp_path_factory):
  root = tmp_path_factory.mktemp("decoder_only")
  text = root / "text.en"
  text.write_text("\n".join(tiny.sentences(EXAMPLES, seed=5)) + "\n")
  settings = runs.bindings(
    TEXT=str(text),
    VOCABULARY_PATH=tiny.train_vocabulary(root),
    TARGET_CHECKPOINT_PATH=drawn(root / "target", tiny_gpt.TARGET),
  )
  gin_file = root / "pair.gin"
  gin_file.write_text((runs.ROOT / "tests/e2e/tiny_lm.gin").read_text() + settings)
  return gin_file, drawn(root / "draft", tiny_gpt.DRAFT)


def drawn(directory, config):
  return tiny.save(directory, config, tiny.drawn(config))


@pytest.fixture(scope="session")
def run(pair):
  def run(config, drafts=True, **settings):
    if drafts:
      settings |= {"DRAFT_CHECKPOINT_PATH": pair[1], "GAMMA": 3}
    runs.completed(f"configs/{config}.gin", pair[0], PROMPT_WORDS=1, **settings)

  return run


@pytest.mark.parametrize("config", ["eval_lm", "eval_baseline_lm"])
def test_continuations_are_evaluated(run, config, tmp_path):
  drafts = config == "eval_lm"
  run(config, drafts, module="t5x.eval", EVAL_OUTPUT_DIR=str(tmp_path))
  (file,) = (tmp_path / "inference_eval").glob("*-metrics.jsonl")
  metrics = json.loads(file.read_text())
  assert metrics["log_likelihood"] < 0 < metrics["tokens_per_target_call"]
  assert ("alpha_by_counts" in metrics) == drafts
