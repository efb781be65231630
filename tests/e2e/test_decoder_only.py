"""`python -m t5x.infer` with decoder-only networks, on checkpoints the test makes."""

import json

import pytest

from specdec_t5x import api
from tests.e2e import runs
from tests.t5x_bridge import tiny, tiny_gpt

EXAMPLES = 20


@pytest.fixture(scope="session")
def pair(tmp_path_factory):
  """The gin file of a tiny pair and the draft's checkpoint."""
  root = tmp_path_factory.mktemp("decoder_only")
  text = root / "text.en"
  text.write_text("\n".join(tiny.sentences(EXAMPLES, seed=5)) + "\n")
  settings = runs.bindings(
    TEXT=str(text),
    VOCABULARY_PATH=tiny.train_vocabulary(root),
    TARGET_CHECKPOINT_PATH=tiny.save_t5x(root / "target", tiny_gpt.TARGET, seed=1),
  )
  gin_file = root / "pair.gin"
  gin_file.write_text((runs.ROOT / "tests/e2e/tiny_lm.gin").read_text() + settings)
  return gin_file, tiny.save_t5x(root / "draft", tiny_gpt.DRAFT, seed=2)


@pytest.fixture(scope="session")
def run(pair, tmp_path_factory):
  """Runs the pair with a configuration and more gin files; returns the directory."""

  def run(config, *more, drafts=True, **settings):
    output = tmp_path_factory.mktemp("run")
    given = {"DRAFT_CHECKPOINT_PATH": pair[1]} if drafts else {}
    if "EVAL_OUTPUT_DIR" not in settings:
      given["INFER_OUTPUT_DIR"] = str(output)
    runs.completed(
      *(config, pair[0], *more), **{"PROMPT_WORDS": 1, **given, **settings}
    )
    return output

  return run


@pytest.fixture(scope="session")
def speculative(run):
  return run("configs/spec_lm.gin", GAMMA=3)


def test_speculation_writes_the_plain_models_tokens(pair, speculative):
  tokens, folder = runs.tokens(speculative), pair[0].parent
  plain = api.generate(
    [text.split()[0] for text in tiny.sentences(EXAMPLES, seed=5)],
    api.load_model(str(folder / "target" / "checkpoint_7")),
    None,
    str(folder / "tiny.model"),
    max_length=12,
    batch_size=8,
  )
  assert tokens == [output.tokens for output in plain]
  assert len(tokens) == EXAMPLES
  assert len({tuple(row) for row in tokens}) > 1
  summary = runs.summary(speculative)
  assert summary["guarantee"] == "EXACT"
  assert summary["statistics"]["examples"] == EXAMPLES
  assert summary["decoder"]["drafter"]["network"]["kind"] == "GptTransformer"
  for record in runs.records(speculative):
    assert record["aux"]["tokens"] == len(record["prediction_tokens"]) <= 12
    assert len(record["inputs"]["inputs_pretokenized"].split()) == 1


@pytest.mark.parametrize("config", ["eval_lm", "eval_baseline_lm"])
def test_how_texts_go_on_is_evaluated(run, config, tmp_path):
  drafts = config == "eval_lm"
  settings = {"EVAL_OUTPUT_DIR": str(tmp_path), **({"GAMMA": 3} if drafts else {})}
  run(f"configs/{config}.gin", drafts=drafts, module="t5x.eval", **settings)
  (file,) = (tmp_path / "inference_eval").glob("*-metrics.jsonl")
  found = json.loads(file.read_text())
  assert found["log_likelihood"] < 0 < found["tokens_per_target_call"]
  assert ("alpha_by_counts" in found) == drafts


def test_trees_write_them_too(run, speculative):
  """The baseline does in docs/how-to/decoder_only.md."""
  output = run("configs/spec_lm.gin", "configs/drafters/tree.gin")
  assert runs.tokens(output) == runs.tokens(speculative)
