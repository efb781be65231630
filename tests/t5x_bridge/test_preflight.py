"""Checks before a run: messages about wrong settings, and nothing overwritten."""

import pathlib

import gin
import pytest
import seqio
import t5x
from t5x import gin_utils, infer

from specdec_t5x.t5x_bridge import preflight, writer
from tests import commands
from tests.real_data import ROOT
from tests.t5x_bridge import tiny

FREE = {
  "INFER_OUTPUT_DIR",
  "infer.infer.output_dir",
  "infer.infer.mode",
  "infer.infer.shard_id",
  "infer.infer.num_shards",
}
GIVEN = ("TARGET_CHECKPOINT_PATH", "DRAFT_CHECKPOINT_PATH", "VOCABULARY_PATH")
GIN_FILES = {
  "encoder-decoder": ["configs/spec_ende.gin"],
  "decoder-only": ["configs/spec_lm.gin", "configs/pairs/gpt_97m_6m.gin"],
}


@pytest.fixture(params=GIN_FILES.values(), ids=GIN_FILES)
def finished(request, tmp_path, monkeypatch):
  """Yields the folder of a finished run of gin files, with gin's bindings in place."""
  monkeypatch.chdir(ROOT)
  bindings = [f"{name} = 'somewhere'" for name in (*GIVEN, "INFER_OUTPUT_DIR")]
  with commands.own_flags(lambda: None), commands.as_main(infer):
    gin.configurable(infer.infer)
    # T5X searches for gin files, because gin's own search depends on earlier tests.
    folders = [".", str(pathlib.Path(t5x.__file__).parents[1])]
    gin_utils.parse_gin_flags(folders, request.param, bindings)
    finish(tmp_path)
    yield tmp_path


def finish(directory):
  name = "task-predict.jsonl-00000-of-00001"
  (directory / f"{name}-chunk00000").write_text('{"prediction": "x"}\n')
  model = tiny.plain(seqio.PassThroughVocabulary(size=64))
  writer.merge_and_summarize(str(directory), name, str(directory), 7, model)


def test_every_setting_except_the_output_place_is_compared(finished, monkeypatch):
  preflight.check_same_run(str(finished))
  # gin's public functions show only text.
  for (scope, selector), bindings in gin.config._CONFIG.items():
    for parameter in bindings:
      name = scope if selector == "gin.macro" else f"{selector}.{parameter}"
      with monkeypatch.context() as patch:
        patch.setitem(bindings, parameter, "otherwise")
        if name.removeprefix("t5x.") in FREE:
          preflight.check_same_run(str(finished))
          continue
        message = rf"{name.rpartition('.')[2]}: .* -> 'otherwise'"
        with pytest.raises(ValueError, match=message):
          preflight.check_same_run(str(finished))


@pytest.mark.parametrize(
  ("file", "known", "unknown"),
  [
    ("configs/baseline_ende.gin", "DRAFT_CHECKPOINT_PATH", "GAMMA"),
    ("configs/spec_ende.gin", "GAMMA", "GAMA"),
    ("configs/drafters/quantized.gin", "BITS", "GAMA"),
  ],
)
def test_macros_of_files_and_included_files_are_known(file, known, unknown):
  found = preflight.macros_of_files([file, "no/such.gin"])
  assert known in found
  assert unknown not in found
