"""Distillation: a better draft on held-out inputs, kept outputs, resumed runs."""

import dataclasses
import json
import pathlib

import numpy as np
import pytest

import specdec_t5x
from specdec_t5x import api, train, tuning
from specdec_t5x.network.transformer import Transformer
from specdec_t5x.training import acceptance, checkpoints
from tests.real_data import ROOT
from tests.t5x_bridge import tiny
from tests.training.conftest import (
  NETWORK,
  assert_same,
  dying,
  logged,
  params_of,
  saved,
)

DRAFT = Transformer(dataclasses.replace(NETWORK, emb_dim=16))
STEPS = 15


def records(path):
  return [json.loads(line) for line in pathlib.Path(path).read_text().splitlines()]


def padded(rows):
  return np.array([[*row, *[0] * (32 - len(row))] for row in rows], np.int32)


def timed(job, params):
  """Returns the decoder with times, instead of measuring the times."""
  if job.decoder.drafter is None:
    return job.decoder
  policy = dataclasses.replace(job.decoder.policy, seconds=(1.0, 1.1, 1.2, 1.3))
  return dataclasses.replace(job.decoder, policy=policy)


@pytest.fixture(scope="module")
def files(tmp_path_factory, checkpoint, copy_files):
  root = tmp_path_factory.mktemp("pair")
  # Some inputs are there twice.
  lines = [*tiny.sentences(140, 5), *tiny.sentences(20, 5)]
  (root / "text.en").write_text("\n".join(lines) + "\n")
  return {
    "INPUTS": str(root / "text.en"),
    "PREFIX": "",
    "VOCABULARY_PATH": copy_files[0].sentencepiece_model_file,
    "TARGET_CHECKPOINT_PATH": checkpoint,
    "DRAFT_CHECKPOINT_PATH": saved(DRAFT, root / "draft", params_of(DRAFT)),
  }


@pytest.fixture(scope="module")
def distil(files):
  """Returns a function that distils into a folder."""

  def run(folder, **settings):
    bindings = {
      **files,
      **{"OUTPUT_DIR": str(folder), "tasks.translation_from_files.name": folder.name},
      **{"STEPS": STEPS, "VALIDATION_PERIOD": 5, "WARMUP_STEPS": 1},
      **{"BATCH_SIZE": 2, "DECODING_BATCH_SIZE": 4, "VALIDATION_SHARE": 0.2},
      "TASK_FEATURE_LENGTHS": {"inputs": 32, "targets": 32},
      **settings,
    }
    bindings = [f"{name} = {value!r}" for name, value in bindings.items()]
    with pytest.MonkeyPatch.context() as patch:
      patch.setattr(tuning, "tuned", timed)
      train.run("distil", ["configs/train/distil.gin"], bindings, [str(ROOT)])

  return run


@pytest.fixture(scope="module")
def folder(distil, tmp_path_factory):
  """Returns the folder of a run without a kill."""
  folder = tmp_path_factory.mktemp("distilled")
  distil(folder)
  return folder


@pytest.mark.slow
def test_alpha_rises_on_inputs_that_were_never_trained_on(folder):
  trained, held_out = (
    {record["inputs"] for record in records(folder / f"{part}.jsonl")}
    for part in ("train", "validation")
  )
  assert not trained & held_out
  assert len(held_out) == round(0.2 * len(trained | held_out))
  alphas = logged(folder / "training", "validation_accuracy")
  assert max(alphas) > alphas[0] + 0.1


@pytest.mark.slow
def test_the_counts_are_those_of_a_decode(folder, files):
  target = specdec_t5x.load_model(files["TARGET_CHECKPOINT_PATH"])
  draft = specdec_t5x.load_model(folder / "checkpoint_0")
  path = files["VOCABULARY_PATH"]
  texts = [x["inputs"] for x in records(folder / "validation.jsonl")]
  decoded = specdec_t5x.generate(texts, target, draft, path, gamma=3, max_length=32)
  ids = api.encoded(texts, draft.network, api.opened(path, target))
  inputs, tokens = padded(ids), padded([output.tokens for output in decoded])
  batch = {
    "encoder_input_tokens": inputs,
    "decoder_target_tokens": tokens,
    "decoder_input_tokens": np.pad(tokens, [(0, 0), (1, 0)])[:, :-1],
    "encoder_segment_ids": np.sign(inputs),
    "decoder_segment_ids": np.sign(tokens),
  }
  hits = acceptance.hits_of(draft.network, draft.params, [batch])
  calls = sum(output.target_calls for output in decoded)
  expected = sum(len(output.tokens) for output in decoded) / calls
  assert acceptance.tokens_per_call(hits, 3) == expected > 1


@pytest.mark.slow
def test_a_run_that_is_killed_twice_has_the_same_result(
  folder, distil, tmp_path, monkeypatch
):
  save = checkpoints.Checkpoints.save
  steps = []
  numbers = dying(monkeypatch, after=50)

  def training(self, state, position):
    steps.append(int(state.step))
    if steps == [0, 5, 10]:
      raise KeyboardInterrupt
    save(self, state, position)

  monkeypatch.setattr(checkpoints.Checkpoints, "save", training)
  for _ in range(2):
    with pytest.raises(KeyboardInterrupt):
      distil(tmp_path)
  distil(tmp_path)
  assert steps == [0, 5, 10, 10, 15]
  assert len(numbers) < 2 * 160
  decoded = len(numbers)
  distil(tmp_path)
  assert (len(numbers), len(steps)) == (decoded, 5)
  for name in ("train.jsonl", "validation.jsonl"):
    assert records(tmp_path / name) == records(folder / name)
  one, other = (
    specdec_t5x.load_model(path / "checkpoint_0").params for path in (folder, tmp_path)
  )
  assert_same(one, other)
  # Half of a last line, as a kill in the middle of a write leaves it.
  kept = tmp_path / "outputs.jsonl"
  kept.write_text(kept.read_text()[:-9])
  distil(tmp_path)
  one, other = (
    {record["number"]: record for record in records(path / "outputs.jsonl")}
    for path in (folder, tmp_path)
  )
  assert one == other


@pytest.mark.slow
def test_kept_outputs_belong_to_their_inputs(distil, folder, files, tmp_path):
  text = tmp_path / "other.en"
  text.write_text("\n".join(tiny.sentences(160, 6)) + "\n")
  with pytest.raises(ValueError, match=r"holds a run with other settings \(inputs"):
    distil(folder, INPUTS=str(text), **{"tasks.translation_from_files.name": "other"})
