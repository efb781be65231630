"""T5's vocabulary loads lazily; of what is none see tests/errors/file_cases.py."""

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
