"""T5's vocabulary loads lazily, and what is no vocabulary is refused."""

import pytest

from specdec_t5x.data import vocabularies


def test_nothing_is_read_before_use():
  vocabulary = vocabularies.t5_vocabulary()
  assert vocabulary.sentencepiece_model_file.startswith("gs://t5-data/vocabs/cc_all")
  assert vocabulary.extra_ids == 100


def test_t5_vocabulary(real_data):
  vocabulary = vocabularies.t5_vocabulary(real_data("t5_spiece/spiece.model"))
  vocabularies.check_vocabulary(vocabulary)
  assert vocabulary.vocab_size == 32_100
  assert vocabulary.encode("<extra_id_0>") == [32_099]


def test_missing_and_malformed_files(write, tmp_path):
  nowhere = vocabularies.t5_vocabulary(str(tmp_path / "no.model"))
  with pytest.raises(ValueError, match=r"no\.model can't be read"):
    vocabularies.check_vocabulary(nowhere)
  text = vocabularies.t5_vocabulary(write("text.model", "<pad>\t0\n</s>\t0\n"))
  with pytest.raises(ValueError, match="not a SentencePiece model"):
    vocabularies.check_vocabulary(text)
  empty = vocabularies.t5_vocabulary(write("empty.model", ""))
  with pytest.raises(ValueError, match=r"empty\.model"):
    vocabularies.check_vocabulary(empty)


def test_other_special_ids_are_refused(write):
  sentencepiece = pytest.importorskip("sentencepiece")
  path = write("corpus.txt", "\n".join(f"word{n} and another" for n in range(50)))
  prefix = path.removesuffix(".txt")
  sentencepiece.SentencePieceTrainer.train(
    input=path,
    model_prefix=prefix,
    vocab_size=24,
    minloglevel=2,
    **{"bos_id": 0, "unk_id": 1, "eos_id": 2},
  )
  with pytest.raises(ValueError, match=r"'unk_id': 1.*--pad_id=0"):
    vocabularies.check_vocabulary(vocabularies.t5_vocabulary(prefix + ".model"))
