"""Unusual input that is valid: docs/errors.md."""

import numpy as np
import pytest
import seqio

from specdec_t5x.data import tasks
from tests.t5x_bridge import tiny

LENGTHS = {"inputs": 8, "targets": 4}


@pytest.fixture(scope="module")
def vocabulary(tmp_path_factory):
  path = tiny.train_vocabulary(tmp_path_factory.mktemp("vocabulary"))
  return seqio.SentencePieceVocabulary(path, extra_ids=0)


def test_blank_and_enormous_lines_are_valid_inputs(tmp_path, vocabulary):
  source, target = tmp_path / "a.en", tmp_path / "a.de"
  enormous = "the old dog " * (1_200_000 // 12)
  source.write_text(f"a dog\n\n{enormous}\n \n")
  target.write_text("a cat\n\n\nthe red house sees the old man\n")
  name = tasks.translation_from_files(
    f"fine_{tmp_path.name}", {"test": (str(source), str(target))}, vocabulary=vocabulary
  )
  rows = seqio.get_mixture_or_task(name).get_dataset(LENGTHS, "test", shuffle=False)
  rows = list(rows.as_numpy_iterator())
  assert len(rows) == 4
  assert [len(row["inputs"]) for row in rows] == [8] * 4
  assert [len(row["targets"]) for row in rows] == [4, 1, 1, 4]
  assert all(row["inputs"][-1] == vocabulary.eos_id for row in rows)
  assert len(rows[2]["inputs_pretokenized"]) > 1_000_000
  assert np.array_equal(rows[1]["targets"], [vocabulary.eos_id])
