"""Text tasks that the command reads without TensorFlow match seqio's reading."""

import json
import textwrap

import numpy as np
import pytest
import seqio
import t5x

from specdec_t5x.data import tasks
from specdec_t5x.t5x_bridge.model import EncoderDecoderModel
from specdec_t5x.vocabularies.opening import open_vocabulary
from specdec_t5x.vocabularies.sentencepieces import SentencePieceVocabulary
from tests import processes
from tests.e2e import runs
from tests.vocabularies import made

if not hasattr(t5x, "PROVIDER"):
  pytest.skip("upstream T5X reads every task by seqio", allow_module_level=True)
from t5x import inference_data, plain_tasks

TEXTS = [
  *("the old man sees a red house", "", "  a  cat\tsees ", "Zürich, ½ of ﬁve"),
  *("<extra_id_0> dog", "a </s> b", "x" * 50, "\u2028 end "),
]
LENGTHS = {"inputs": 9, "targets": 6}


@pytest.mark.parametrize("extra_ids", [0, 5])
def test_tokens_and_texts_equal_seqio_s(vocabulary_path, extra_ids):
  ours = SentencePieceVocabulary(vocabulary_path, extra_ids)
  theirs = seqio.SentencePieceVocabulary(vocabulary_path, extra_ids)
  for name in ("eos_id", "unk_id", "pad_id", "vocab_size", "extra_ids"):
    assert getattr(ours, name) == getattr(theirs, name)
  for text in TEXTS:
    assert ours.encode(text) == theirs.encode(text)
    tokens = ours.encode_tf(text).numpy().tolist()
    assert ours.encode(text) == tokens == theirs.encode_tf(text).numpy().tolist()
  tokens = np.random.default_rng(0).integers(0, ours.vocab_size + 3, (200, 7))
  expected = theirs.decode_tf(tokens.astype(np.int32)).numpy()
  for row, text in zip(tokens, expected, strict=True):
    assert ours.decode(row) == text.decode()
  assert ours == theirs
  assert ours != seqio.SentencePieceVocabulary(vocabulary_path, extra_ids + 1)
  assert ours != seqio.ByteVocabulary(extra_ids)


# Vocabularies with different tokens around inputs: before, after, on both sides, none.
FOLDERS = {
  "EOS": None,
  "<s> and </s>": made.byte_level,
  "a beginning": made.gemma,
  "[CLS] and [SEP]": made.word_piece,
  "nothing": lambda folder: made.unigram(folder, single="$A"),
  "no end of sequence": lambda folder: made.saved(folder, made.words("a", "b")),
}


@pytest.mark.parametrize("kind", FOLDERS)
@pytest.mark.parametrize("length", [9, 1])
def test_examples_and_features_equal_seqio_s(kind, length, vocabulary_path, tmp_path):
  """The examples are a shard's, from the second chunk on."""
  vocabulary = SentencePieceVocabulary(vocabulary_path, 5)
  if FOLDERS[kind]:
    FOLDERS[kind](tmp_path / "folder")
    vocabulary = open_vocabulary(tmp_path / "folder")
  lengths = LENGTHS | {"inputs": length}
  files = tmp_path / "x.en", tmp_path / "x.de"
  for path, lines in zip(files, (TEXTS, TEXTS[::-1]), strict=True):
    path.write_text("".join(f"{line}\n" for line in lines))
  name = tasks.translation_from_files(
    f"plain_and_not_{list(FOLDERS).index(kind)}_{length}",
    {"test": tuple(map(str, files))},
    vocabulary=vocabulary,
    prefix="<extra_id_0> ",  # One text starts with the prefix.
  )
  found = {}
  plain, by_seqio = inference_data.PlainExamples, inference_data.SeqioExamples
  for reader in (plain, by_seqio):
    model = EncoderDecoderModel.__new__(EncoderDecoderModel)
    cfg = t5x.utils.DatasetConfig(name, lengths, "test[1:]", 2, False, 0)
    task = [plain_tasks.find(name)] if reader is plain else []
    examples = reader(cfg, model, *task, 1, 2)
    (task,) = examples.tasks
    spec = examples.input_spec()
    chunks = examples.chunks(task, period=1, first=1)
    rows = [[list(part.as_numpy_iterator()) for part in chunk] for chunk in chunks]
    found[reader] = spec, examples.count(task), rows
  assert isinstance(inference_data.open_examples(cfg, model, 1, 2), plain)
  model.FEATURE_CONVERTER_CLS = seqio.EncDecFeatureConverter  # A user's converter.
  assert isinstance(inference_data.open_examples(cfg, model, 1, 2), by_seqio)
  (spec, count, rows), (expected_spec, _, expected) = found.values()
  assert spec == expected_spec
  assert count == 3
  assert len(rows) == 1
  for ours, theirs in zip(rows[0], expected[0], strict=True):
    for one, other in zip(ours, theirs, strict=True):
      assert list(one) == list(other)
      for key in one:
        np.testing.assert_array_equal(one[key], other[key], strict=True)


RUN = """
import json, runpy, sys
try:
  runpy.run_module("t5x.infer", run_name="__main__", alter_sys=True)
finally:
  print(json.dumps([name for name in ("tensorflow", "seqio") if name in sys.modules]))
"""


@pytest.mark.parametrize("files", [(), ("configs/contrib/online.gin",)])
def test_the_command_imports_no_tensorflow_for_text_tasks(files, pair, tmp_path):
  flags = runs.command(
    *("configs/spec_ende.gin", pair[0], *files),
    DRAFT_CHECKPOINT_PATH=pair[1],
    INFER_OUTPUT_DIR=str(tmp_path),
    GAMMA=3,
  )[3:]
  assert json.loads(processes.printed("-c", RUN, *flags).splitlines()[-1]) == []


def test_a_tfds_task_is_registered_after_the_import_of_seqio():
  program = """
    from t5x import plain_tasks, quiet_start
    plain_tasks.allow_deferring()
    from specdec_t5x.data import tasks
    assert "wmt14_ende" in plain_tasks.known_names()
    assert not plain_tasks.is_seqio_loaded()
    quiet_start.import_seqio()
    import seqio
    print(seqio.get_mixture_or_task("wmt14_ende").name)
  """
  assert processes.printed("-c", textwrap.dedent(program)).split() == ["wmt14_ende"]
