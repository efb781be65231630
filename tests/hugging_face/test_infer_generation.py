"""`python -m t5x.infer` gives the tokens and texts of `generate` for folders."""

import dataclasses
import json
import shutil

import flax
import jax.numpy as jnp
import pytest
import t5x
import tokenizers

import specdec_t5x
from lab.peers import hf_folder
from specdec_t5x.hugging_face import generation
from specdec_t5x.vocabularies.opening import open_vocabulary
from tests import networks
from tests.e2e import runs
from tests.t5x_bridge import tiny
from tests.vocabularies import made

if not hasattr(t5x, "PROVIDER"):
  pytest.skip("upstream T5X has no plain tasks", allow_module_level=True)
from t5x import inference_data

FOLDERS = "configs/pairs/hugging_face.gin"
SPECULATIVE = "configs/spec_ende.gin"
PLAIN = "configs/baseline_ende.gin"
ROWS = 352
ROOM = 12
COUNT = 8
DRAFT_ROWS = ROWS - 12
TARGET = dataclasses.replace(tiny.TARGET, vocab_size=ROWS)
TEXTS = [
  f"translate English to German: {left}{text}{right}"
  for text, (left, right) in zip(
    tiny.sentences(COUNT, seed=5),
    [("{ ", " }"), ("", "{"), ("a\n", "}"), ("", "")] * 2,
    strict=True,
  )
]

TASK = f"""
from __gin__ import dynamic_registration
from specdec_t5x.data import tasks
MIXTURE_OR_TASK_NAME = @tasks.from_records()
tasks.from_records:
  name = '{{name}}'
  files = {{{{'test': '{{root}}/rows.jsonl'}}}}
  target_field = None
  vocabulary = %VOCABULARY
TASK_FEATURE_LENGTHS = {{{{'inputs': 60, 'targets': {ROOM}}}}}
BATCH_SIZE = {COUNT}
"""


def parameters(tokenizer):
  """Returns parameters of a target that often gives the added tokens."""
  params = flax.core.unfreeze(networks.drawn(TARGET, seed=3))
  added = [tokenizer.token_to_id(token) for token in ("{", "}", "\n")]
  head = params["decoder"]["logits_dense"]
  head["kernel"] = head["kernel"].at[:, jnp.array(added)].multiply(2.5)
  return params


def without_last_rows(params, rows):
  embedding = params["token_embedder"]["embedding"][:rows]
  head = params["decoder"]["logits_dense"]["kernel"][:, :rows]
  decoder = params["decoder"] | {"logits_dense": {"kernel": head}}
  return params | {"token_embedder": {"embedding": embedding}, "decoder": decoder}


@pytest.fixture(scope="module")
def pair(tmp_path_factory):
  """Writes a target and a draft with fewer rows; returns the root and the folders."""
  root = tmp_path_factory.mktemp("generation")
  tokenizer = made.byte_level(root / "tokenizer")
  tokenizer.add_tokens(["{", "}", tokenizers.AddedToken("\n", normalized=False)])
  made.saved(root / "tokenizer", tokenizer)
  params = parameters(tokenizer)
  for name, rows in (("target", ROWS), ("draft", DRAFT_ROWS)):
    config = dataclasses.replace(TARGET, vocab_size=rows)
    hf_folder.write(str(root / name), config, without_last_rows(params, rows))
    shutil.copytree(root / "tokenizer", root / name, dirs_exist_ok=True)
  (root / "rows.jsonl").write_text(
    "".join(json.dumps({"inputs": x}) + "\n" for x in TEXTS)
  )
  return root, {name: str(root / name) for name in ("target", "draft")}


def run(pair, out, *files, more=(), **settings):
  """Runs the command with the task's file and `more`, and returns the printed text."""
  root, paths = pair
  gin = out.parent / "task.gin"
  gin.write_text(TASK.format(name=f"task_{out.parent.name}", root=root))
  if "EVAL_OUTPUT_DIR" not in settings:
    settings["INFER_OUTPUT_DIR"] = str(out)
  return runs.completed(
    *files,
    FOLDERS,
    gin,
    *more,
    TARGET_CHECKPOINT_PATH=paths["target"],
    **settings,
  )


# By way of decoding: end tokens and start token in generation_config.json, and settings
# that the command names as not applied. The tokenizer's EOS is not always an end token.
HOW = {
  "speculative": ([2, 97, 317], 5, {"temperature": 0.7, "num_beams": 4}),
  "plain": ([323, 2], 9, {"do_sample": True}),
  "seqio": ([307], 11, {"top_p": 0.5}),
}


@pytest.mark.parametrize("how", HOW)
def test_the_command_applies_a_folder_s_settings_like_generate(
  how, pair, tmp_path, monkeypatch
):
  root, paths = pair
  ends, start, choices = HOW[how]
  fields = {"eos_token_id": ends, "decoder_start_token_id": start, **choices}
  for name in paths:
    made.write_json(root / name / generation.GENERATION, fields)
  if how == "seqio":
    monkeypatch.setattr(inference_data.plain_tasks, "find", lambda name: None)
  if how == "plain":
    printed = run(pair, tmp_path / "out", PLAIN)
  else:
    draft = {"DRAFT_CHECKPOINT_PATH": paths["draft"], "GAMMA": 3}
    printed = run(pair, tmp_path / "out", SPECULATIVE, **draft)
  named = ", ".join(f"{name}={value!r}" for name, value in choices.items())
  assert f"{named} not applied" in printed
  with pytest.warns(UserWarning, match=f"{named} not applied"):
    target = specdec_t5x.load_model(paths["target"])
  outputs = specdec_t5x.generate(TEXTS, target, None, paths["target"], max_length=ROOM)
  records = runs.records(tmp_path / "out")
  assert [x["prediction_tokens"] for x in records] == [x.tokens for x in outputs]
  texts = [record["prediction"] for record in records]
  assert texts == [output.text for output in outputs]
  ended = [output.tokens[-1] in ends for output in outputs]
  assert any(ended)
  vocabulary = open_vocabulary(paths["target"])
  for output, text, has_end in zip(outputs, texts, ended, strict=True):
    kept = output.tokens[:-1] if has_end else output.tokens
    assert text == vocabulary.decode(kept)
    assert not set(kept) & set(ends)
  if how != "plain":
    summary = runs.summary(tmp_path / "out")
    assert summary["statistics"]["alpha_by_counts"]["value"] > 0.9


def test_the_lines_of_a_file_are_decoded_by_one_command(pair, tmp_path):
  root, paths = pair
  made.write_json(root / "target" / generation.GENERATION, {"eos_token_id": [2]})
  lines = [text.replace("\n", " ") for text in TEXTS]
  (tmp_path / "in.txt").write_text("\n".join(lines) + "\n")
  settings = {
    "INPUT_FILE": str(tmp_path / "in.txt"),
    "INFER_OUTPUT_DIR": str(tmp_path / "out"),
    "TARGET_CHECKPOINT_PATH": paths["target"],
    "DRAFT_CHECKPOINT_PATH": paths["draft"],
    "GAMMA": 3,
    "TASK_FEATURE_LENGTHS": {"inputs": 60, "targets": ROOM},
  }
  runs.completed("configs/files.gin", FOLDERS, **settings)
  target = specdec_t5x.load_model(paths["target"])
  outputs = specdec_t5x.generate(lines, target, None, max_length=ROOM)
  assert runs.tokens(tmp_path / "out") == [x.tokens for x in outputs]
  with pytest.raises(SystemExit, match=r"INPUT_FILE must be .* got 'nowhere'"):
    runs.completed("configs/files.gin", FOLDERS, **settings | {"INPUT_FILE": "nowhere"})


def test_an_evaluation_applies_the_folder_s_end_tokens(pair, tmp_path):
  """The folder has two end tokens, and the run's vocabulary does not know them."""
  root, paths = pair
  ends = [97, 317]
  made.write_json(root / "target" / generation.GENERATION, {"eos_token_id": ends})
  (tmp_path / "references.gin").write_text(
    "from __gin__ import dynamic_registration\n"
    "from specdec_t5x.data import tasks\n"
    "tasks.from_records.target_field = 'inputs'\n"
  )
  run(
    pair,
    tmp_path / "unused",
    "configs/eval_ende.gin",
    module="t5x.eval",
    more=[tmp_path / "references.gin"],
    DRAFT_CHECKPOINT_PATH=paths["draft"],
    VOCABULARY_PATH=str(root / "tokenizer"),
    EVAL_OUTPUT_DIR=str(tmp_path / "out"),
    GAMMA=3,
  )
  target = specdec_t5x.load_model(paths["target"])
  outputs = specdec_t5x.generate(TEXTS, target, None, paths["target"], max_length=ROOM)
  assert {output.tokens[-1] for output in outputs} & set(ends)
  vocabulary = open_vocabulary(str(root / "tokenizer"))
  (file,) = (tmp_path / "out" / "inference_eval").glob("*-0*.jsonl")
  decoded = [json.loads(line)["output"] for line in file.read_text().splitlines()]
  assert decoded == [vocabulary.decode(output.tokens) for output in outputs]
