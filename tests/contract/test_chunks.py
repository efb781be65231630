"""The chunks that a killed run keeps, by t5x_runtime, without a model."""

import pathlib

import pytest

pytest.importorskip("t5x.inference_files")  # Upstream T5X has no such module.

from t5x.inference_files import ChunkFiles

SUFFIX = "predict.jsonl-00000-of-00001"


def of_run(folder, **settings):
  files = ChunkFiles(str(folder), "task", SUFFIX, settings)
  files.find_done()
  return files


@pytest.fixture
def killed(tmp_path):
  """Returns the folder of a run that was killed after two chunks."""
  files = of_run(tmp_path, seed=0)
  for chunk in (0, 1):
    files.write(chunk, 1, lambda path: pathlib.Path(path).write_text("a line\n"))
  assert files.done == {0: 1, 1: 1}
  return tmp_path


def test_complete_chunks_are_kept(killed):
  assert of_run(killed, seed=0).done == {0: 1, 1: 1}
  (chunk,) = killed.glob("tmp-*/*-chunk00001")
  chunk.with_name(f"{chunk.name}.COMPLETED").unlink()
  assert of_run(killed, seed=0).done == {0: 1}


def test_a_marker_without_a_chunk_does_not_count(killed):
  (chunk,) = killed.glob("tmp-*/*-chunk00000")
  chunk.unlink()
  assert of_run(killed, seed=0).done == {1: 1}


def test_truncated_chunks_and_chunks_with_other_settings_are_refused(killed):
  with pytest.raises(ValueError, match=r"unfinished run with other settings: .*seed"):
    of_run(killed, seed=1)
  (chunk,) = killed.glob("tmp-*/*-chunk00000")
  chunk.write_text("{")
  with pytest.raises(ValueError, match="chunk00000"):
    of_run(killed, seed=0)
