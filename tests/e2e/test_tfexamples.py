"""`t5x.infer` on files of TFExamples; `python -m t5x.main` with a command's name."""

import runpy
import sys

import pytest
import tensorflow as tf

from specdec_t5x.data.tasks import TRANSLATE_ENDE
from tests.contract.conftest import runtime_only
from tests.e2e import runs


def written(path, texts, key="inputs"):
  """Writes a file of TFExamples and returns the path."""
  with tf.io.TFRecordWriter(str(path)) as writer:
    for text in texts:
      value = tf.train.Feature(bytes_list=tf.train.BytesList(value=[text.encode()]))
      features = tf.train.Features(feature={key: value})
      writer.write(tf.train.Example(features=features).SerializeToString())
  return str(path)


@pytest.mark.slow
def test_tfexamples_give_the_outputs_of_the_same_texts(pair, speculative, tmp_path):
  gin_file, draft = pair
  texts = (gin_file.parent / "text.en").read_text().splitlines()
  files = [
    written(tmp_path / f"{part}.tfrecord", [TRANSLATE_ENDE + text for text in some])
    for part, some in enumerate((texts[:7], texts[7:]))
  ]
  runs.completed(
    *("configs/spec_ende.gin", gin_file, "configs/runs/tfexamples.gin"),
    TF_EXAMPLE_FILE_PATHS=files,
    DRAFT_CHECKPOINT_PATH=draft,
    GAMMA=3,
    INFER_OUTPUT_DIR=str(tmp_path / "out"),
  )
  assert runs.tokens(tmp_path / "out") == runs.tokens(speculative)


@runtime_only
def test_main_runs_the_named_command():
  process = runs.infer(module="t5x.main", flags=["--run_mode=train"])
  assert process.returncode == 1
  assert process.stderr.startswith("t5x.train: ")


@runtime_only
@pytest.mark.parametrize("flags", [[], ["--run_mode=precompile"]])
def test_an_unknown_or_absent_mode_is_refused(flags, monkeypatch):
  monkeypatch.setattr(sys, "argv", ["t5x.main", *flags])
  with pytest.raises(SystemExit):
    runpy.run_module("t5x.main", run_name="__main__", alter_sys=True)
