"""The tasks of published datasets read folders of TFDS."""

import seqio

from specdec_t5x.data import language_modeling, tasks, text_files
from specdec_t5x.vocabularies.sentencepieces import SentencePieceVocabulary
from tests import real_data, tfds_folders
from tests.data.conftest import examples

BYTES = seqio.ByteVocabulary()


def test_xsum(tfds_dir):
  row = {"document": "long text", "summary": "short"}
  tfds_folders.write("xsum", tfds_dir, test=[row])
  name = tasks.xsum(BYTES)
  (row,) = examples(name)
  assert row["inputs_pretokenized"] == b"summarize: long text"
  assert row["targets_pretokenized"] == b"short"
  assert [f.__name__ for f in seqio.get_mixture_or_task(name).metric_fns] == ["rouge"]


def test_lm1b(tfds_dir):
  test = [{"text": text} for text in ("One two three .", "", "Short")]
  train = [{"text": "Four five six"}]
  tfds_folders.write("lm1b", tfds_dir, test=test, train=train)
  name = language_modeling.lm1b(BYTES, prompt_words=1)
  assert name.startswith("lm1b_p1_v")
  (row,) = examples(name)
  assert row["inputs_pretokenized"] == b"One"
  assert row["targets_pretokenized"] == b" two three ."
  (row,) = examples(name, split="train")
  assert row["targets_pretokenized"] == b" five six"
  assert language_modeling.lm1b() == "lm1b"


def test_real_wmt14(tfds_dir):
  lines = text_files.read_lines(
    str(real_data.path("wmt14_500_multiref/wmt14-en-de.extra_refs.txt"))
  )
  english, german = (
    [t for k, t in (x.split("\t", 1) for x in lines) if k.startswith(kind)]
    for kind in ("S-", "T-")
  )
  rows = [{"en": x, "de": y} for x, y in zip(english, german, strict=True)]
  tfds_folders.write("wmt14_translate/de-en", tfds_dir, test=rows)
  vocabulary = SentencePieceVocabulary(
    str(real_data.path("t5_spiece/spiece.model")), 100
  )
  name = tasks.wmt14_ende(vocabulary)
  rows = examples(name)
  size = seqio.get_mixture_or_task(name).num_input_examples("test")
  assert size == len(rows) == 500
  prefix = "translate English to German: "
  for example, source, target in zip(rows, english, german, strict=True):
    assert example["inputs_pretokenized"].decode() == prefix + source
    assert example["inputs"].tolist() == [*vocabulary.encode(prefix + source), 1]
    assert example["targets"].tolist() == [*vocabulary.encode(target), 1]


def test_real_cnn_dailymail(tfds_dir):
  path = str(real_data.path("cnndm_manuj/cnn_dailymail_validation.csv"))
  records = text_files.read_fields(path, ("article", "highlights", "id"))
  validation = [{"publisher": "", **record} for record in records]
  tfds_folders.write("cnn_dailymail", tfds_dir, validation=validation)
  vocabulary = SentencePieceVocabulary(
    str(real_data.path("t5_spiece/spiece.model")), 100
  )
  lengths = {"inputs": 512, "targets": 128}
  rows = examples(tasks.cnn_dailymail(vocabulary), "validation", lengths)
  assert len(rows) == len(records) == 500
  for example, record in zip(rows, records, strict=True):
    assert example["targets_pretokenized"].decode() == record["highlights"]
    inputs = example["inputs_pretokenized"].decode()
    assert inputs == "summarize: " + record["article"]
    assert example["inputs"][-1] == 1
    assert len(example["inputs"]) <= 512
